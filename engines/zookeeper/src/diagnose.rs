//! What stands between the servers, as they are set up, and what locks are for. They are asked by the word `srvr`, which
//! servers answer unless they are told not to.

use crate::config::Config;
use crate::server::{Said, ask};
use fencelock_core::{Finding, Purpose};

pub(crate) async fn diagnose(config: &Config) -> Vec<Finding> {
    let servers: Vec<&str> = config.servers.split(',').collect();
    let mut findings = Vec::new();
    let asked = servers
        .iter()
        .map(|server| ask(server, config.response_timeout));
    let said = futures_util::future::join_all(asked).await;
    #[cfg(feature = "tls")]
    let plain = config.tls.is_none();
    #[cfg(not(feature = "tls"))]
    let plain = true;
    // Connections with TLS take no such words.
    let told = servers.iter().zip(said).filter(|_| plain);
    for (server, said) in told {
        findings.extend(of_server(server, said, servers.len()));
    }
    if servers.len() > 1 && servers.len().is_multiple_of(2) {
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!(
                "{} servers survive the loss of {}, as {} would",
                servers.len(),
                (servers.len() - 1) / 2,
                servers.len() - 1
            ),
            "have an odd number of servers, and name all of them",
        ));
    }
    findings
}

fn of_server(server: &str, said: Said, named: usize) -> Vec<Finding> {
    let mut findings = Vec::new();
    match said {
        Said::Nothing => findings.push(Finding::new(
            Purpose::Efficiency,
            format!("{server} does not answer"),
            "see why",
        )),
        Said::Other(text) => findings.push(Finding::new(
            Purpose::Correctness,
            format!("{server} does not tell its version and how it serves: {text}"),
            "allow it the word srvr (4lw.commands.whitelist in zoo.cfg, and restart it)",
        )),
        Said::Srvr { version, mode } => {
            let alone = mode == "standalone";
            if alone {
                findings.push(Finding::new(
                    Purpose::Correctness,
                    format!(
                        "{server} stands alone: while it is away nothing is granted or kept, and without its disk every \
                         lock is forgotten"
                    ),
                    "run three servers",
                ));
            } else if named == 1 {
                findings.push(Finding::new(
                    Purpose::Efficiency,
                    format!(
                        "the URL names one server of an ensemble: without {server} nothing goes on"
                    ),
                    "name all of them",
                ));
            }
            // Alone, it follows nobody.
            findings.extend(of_version(server, &version).filter(|_| !alone));
        }
    }
    findings
}

/// What is known to be wrong with locks on a version, where one server follows another.
fn of_version(server: &str, version: &str) -> Option<Finding> {
    let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    let known = (next()?, next()?, next()?);
    let loses = known < (3, 8, 4) || ((3, 9, 0)..(3, 9, 2)).contains(&known);
    loses.then(|| {
        let (major, minor, patch) = known;
        Finding::new(
            Purpose::Correctness,
            format!(
                "ZooKeeper {major}.{minor}.{patch} at {server}: a follower that is killed while it catches up may come back \
                 without what was acknowledged, and lead (ZOOKEEPER-4785)"
            ),
            "upgrade to 3.8.4, 3.9.2 or later",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::read;

    const SRVR: &str = "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023\nLatency min/avg/max: 0/0.0/0\n\
                        Mode: follower\nNode count: 5\n";

    #[test]
    fn what_a_server_says_is_judged() {
        let said = read(SRVR);
        assert!(
            matches!(&said, Said::Srvr { mode, .. } if mode == "follower"),
            "{said:?}"
        );
        assert_eq!(of_server("h", said, 3).len(), 1);
        let alone = |version: &str| Said::Srvr {
            version: version.into(),
            mode: "standalone".into(),
        };
        assert_eq!(of_server("h", alone("3.9.2-x"), 1).len(), 1);
        // The bug is a follower's, and there is none.
        assert_eq!(of_server("h", alone("3.9.1-x"), 1).len(), 1);
        assert_eq!(
            of_server("h", read("srvr is not in the whitelist"), 3).len(),
            1
        );
        assert_eq!(of_server("h", Said::Nothing, 3).len(), 1);
    }
}
