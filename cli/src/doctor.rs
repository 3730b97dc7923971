//! `doctor`: what a store promises, what is wrong with its configuration, and what to change.

use std::net::IpAddr;

use fencelock::{Config, Finding, Purpose, StoreUrl};

use crate::args::Doctor;
use crate::exit::{Failure, Outcome, code, print, worse};
use crate::report::Report;
use crate::store::{self, Resolved, Wanted};

pub(crate) async fn doctor(args: Doctor, store: Wanted) -> Outcome {
    if args.all {
        return all(&args, &store.config_file()?).await;
    }
    let Resolved { url, purpose } = store.resolve()?;
    let report = report(&args, &url, purpose).await?;
    print(&if args.json {
        format!("{}\n", report.json())
    } else {
        report.text()
    })?;
    Ok(report.code())
}

/// All stores of the file, also if some of them do not answer.
async fn all(args: &Doctor, file: &Config) -> Outcome {
    let mut worst = code::DONE;
    let mut reports = Vec::new();
    for name in file.names() {
        let looked = match file.url(name) {
            Ok(url) => report(args, &url, file.purpose(name)).await,
            Err(error) => Err(error.into()),
        };
        let report = match looked {
            Ok(report) => report,
            Err(failure) => {
                worst = worse(worst, failure.of(&format!("@{name}")).report());
                continue;
            }
        };
        worst = worse(worst, report.code());
        if args.json {
            let mut json = report.json();
            json["name"] = name.into();
            reports.push(json);
        } else {
            print(&format!("@{name}\n{}\n", report.text()))?;
        }
    }
    if args.json {
        print(&format!("{}\n", serde_json::Value::from(reports)))?;
    }
    Ok(worst)
}

async fn report(args: &Doctor, url: &str, purpose: Option<Purpose>) -> Result<Report, Failure> {
    let client = fencelock::connect(url).inspect_only().await?;
    let mut findings = client.diagnose().await?;
    findings.extend(url_findings(&StoreUrl::parse(url)?));
    let report = Report {
        store: client.store(),
        promises: client.promises().clone(),
        findings,
        purpose: args
            .purpose
            .map(Into::into)
            .or(purpose)
            .unwrap_or(Purpose::Correctness),
    };
    store::close(&client).await;
    Ok(report)
}

/// What is wrong with the URL itself.
pub(crate) fn url_findings(url: &StoreUrl) -> Vec<Finding> {
    let of_shard = |(id, url): (String, String)| {
        let findings = StoreUrl::parse(&url).map(|url| url_findings(&url));
        let findings = findings.unwrap_or_default().into_iter();
        findings.map(move |found| {
            Finding::new(
                found.purpose,
                format!("[{id}] {}", found.what),
                found.change,
            )
        })
    };
    let of_shards = fencelock::shard_urls(url).into_iter().flat_map(of_shard);
    let mut findings: Vec<_> = of_shards.collect();
    findings.extend(own_findings(url));
    findings
}

/// The same, without those of the stores of a set.
fn own_findings(url: &StoreUrl) -> Vec<Finding> {
    let redlock = url.scheme == "redlock" || url.scheme == "redlocks";
    let hosts: Vec<String> = if redlock {
        // Each host may have credentials of its own.
        let hosts = url.clone().take_hosts().unwrap_or_default();
        hosts.into_iter().map(|host| host.host).collect()
    } else {
        url.hosts.clone()
    };
    let hosts: Vec<&str> = hosts.iter().map(|host| without_port(host)).collect();
    let shared = redlock.then(|| shared_machines(&hosts)).flatten();
    unencrypted(url, &hosts).into_iter().chain(shared).collect()
}

/// A connection to another machine without TLS.
fn unencrypted(url: &StoreUrl, hosts: &[&str]) -> Option<Finding> {
    let scheme = url.scheme.as_str();
    // Databases use TLS to another machine by default. Their engine reports an option that turns TLS off, and so does that of
    // the lock service.
    let reported = matches!(scheme, "mysql" | "mariadb" | "postgres" | "postgresql")
        || scheme.starts_with("fencelock+");
    let encrypted = reported
        || matches!(scheme, "redlocks" | "etcds")
        || scheme.starts_with("rediss")
        || scheme.ends_with("+tls")
        || url.clone().take("tls-ca").is_some();
    let remote = hosts.iter().find(|host| !is_loopback(host))?;
    (!encrypted).then(|| {let what = format!(
            "the connection to {remote} is not encrypted: anybody on the network path can read the password and take \
             every lock"
        );
let change = match scheme {
            "etcd" => "use etcds://, or a tunnel",
            "zookeeper" => "use tls-ca=FILE, or a tunnel",
            _ => "use the scheme with TLS (rediss://, redlocks://), or a tunnel",
        };
Finding::against_correctness(what, change)})
}

/// Nodes of a quorum on the same machine.
fn shared_machines(hosts: &[&str]) -> Option<Finding> {
    let mut machines = hosts.to_vec();
    machines.sort_unstable();
    machines.dedup();
    let (nodes, machines) = (hosts.len(), machines.len());
    (machines < nodes).then(|| {
        Finding::against_correctness(
            format!("{nodes} nodes share {machines} machines, and fail together"),
            "put every node on a machine of its own",
        )
    })
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(host, _)| host),
    }
}

fn is_loopback(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host == "localhost" || host.is_empty() || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(url: &str) -> usize {
        url_findings(&StoreUrl::parse(url).unwrap()).len()
    }

    #[test]
    fn a_url_shows_what_is_not_encrypted_and_not_on_its_own_machine() {
        assert_eq!(count("redis://127.0.0.1:7000"), 0);
        assert_eq!(count("redis://[::1]:7000"), 0);
        assert_eq!(count("redis://localhost"), 0);
        assert_eq!(count("sqlite:/x"), 0);
        assert_eq!(count("redis://db.example:7000"), 1);
        assert_eq!(count("rediss://db.example:7000"), 0);
        assert_eq!(count("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"), 1);
        assert_eq!(count("redlock://a:1,b:1,c:1"), 1);
        assert_eq!(
            count("shards:?a=redis://127.0.0.1&b=redis://db.example:7000&set=x"),
            1
        );
        assert_eq!(count("redlocks://:p@a:1,:q@b:1,:r@c:1"), 0);
        assert_eq!(count("redlocks://:p@a:1,:q@b:1,:r@a:2"), 1);
        assert_eq!(count("rediss+sentinel://a:1,b:1,c:1/main"), 0);
        assert_eq!(count("zookeeper://a:1?tls-ca=x"), 0);
        assert_eq!(count("zookeeper://a:1"), 1);
        assert_eq!(count("postgres://a/lock"), 0);
    }
}
