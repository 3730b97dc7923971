//! Findings about the servers' setup.

use fencelock_core::{Finding, Purpose};
use futures_util::future::join_all;

use crate::config::Config;
use crate::server::{SrvrAnswer, ask_srvr};

pub(crate) async fn diagnose(config: &Config) -> Vec<Finding> {
    let servers: Vec<&str> = config.servers.split(',').collect();
    let mut findings = Vec::new();
    // Ports that speak TLS do not answer `srvr`.
    if !config.secure {
        let asked = servers
            .iter()
            .map(|server| ask_srvr(server, config.response_timeout));
        for (server, answer) in servers.iter().zip(join_all(asked).await) {
            findings.extend(of_server(server, answer, servers.len()));
        }
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

/// The findings about one server. `named` is the number of servers in the URL.
fn of_server(server: &str, answer: SrvrAnswer, named: usize) -> Vec<Finding> {
    let (version, mode) = match answer {
        SrvrAnswer::Srvr { version, mode } => (version, mode),
        SrvrAnswer::None => {
            let what = format!("{server} does not answer");
            return vec![Finding::new(Purpose::Efficiency, what, "see why")];
        }
        SrvrAnswer::Other(text) => {
            let what = format!("{server} does not tell its version and mode: {text}");
            let change =
                "allow the command srvr (4lw.commands.whitelist in zoo.cfg), and restart it";
            return vec![Finding::new(Purpose::Correctness, what, change)];
        }
    };
    if mode == "standalone" {
        // `of_version` is about followers, and a standalone server has no leader to follow.
        let what = format!(
            "{server} stands alone: while it is down no lock is granted or renewed, and without its disk every lock is \
             forgotten"
        );
        return vec![Finding::new(
            Purpose::Correctness,
            what,
            "run three servers",
        )];
    }
    let mut findings = Vec::new();
    if named == 1 {
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!("the URL names one server of an ensemble: without {server} no client can lock"),
            "name all of them",
        ));
    }
    findings.extend(of_version(server, &version));
    findings
}

/// The known bug with locks in a version of ZooKeeper. It appears where one server follows another.
fn of_version(server: &str, version: &str) -> Option<Finding> {
    let mut numbers = version.split(['.', '-']).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok);
    let version = (next()?, next()?, next()?);
    let loses = version < (3, 8, 4) || ((3, 9, 0)..(3, 9, 2)).contains(&version);
    loses.then(|| {
        let (major, minor, patch) = version;
        Finding::new(
            Purpose::Correctness,
            format!(
                "ZooKeeper {major}.{minor}.{patch} at {server}: a follower that is killed while it catches up may come back \
                 without acknowledged transactions, and become the leader (ZOOKEEPER-4785)"
            ),
            "upgrade to 3.8.4, 3.9.2 or later",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRVR: &str = "Zookeeper version: 3.8.0-${mvngit.commit.id}, built on 2023\nLatency min/avg/max: 0/0.0/0\n\
                        Mode: follower\nNode count: 5\n";

    #[test]
    fn each_answer_has_its_finding() {
        let answer = SrvrAnswer::parse(SRVR);
        assert!(
            matches!(&answer, SrvrAnswer::Srvr { mode, .. } if mode == "follower"),
            "{answer:?}"
        );
        assert_eq!(of_server("h", answer, 3).len(), 1);
        let alone = |version: &str| SrvrAnswer::Srvr {
            version: version.into(),
            mode: "standalone".into(),
        };
        assert_eq!(of_server("h", alone("3.9.2-x"), 1).len(), 1);
        // The bug is one of followers.
        assert_eq!(of_server("h", alone("3.9.1-x"), 1).len(), 1);
        assert_eq!(
            of_server("h", SrvrAnswer::parse("srvr is not in the whitelist"), 3).len(),
            1
        );
        assert_eq!(of_server("h", SrvrAnswer::None, 3).len(), 1);
    }
}
