//! `doctor`: what a store promises, what stands in the way of that, and what to change.

use std::fmt::Write;

use fencelock::{
    Durability, Finding, LeaseKind, Order, Promises, Purpose, StoreUrl, Wake, in_words,
};
use serde_json::{Value, json};

use crate::args::Doctor;
use crate::exit::{Outcome, code, one_line, print};
use crate::session;

pub(crate) async fn doctor(args: Doctor, store: Option<String>) -> Outcome {
    let url = session::store_url(store);
    let purpose: Purpose = args.purpose.into();
    let client = fencelock::connect(&url).inspect_only().await?;
    let mut findings = client.diagnose().await?;
    findings.extend(of_url(&StoreUrl::parse(&url)?));
    let (promises, store) = (client.promises().clone(), client.store());
    session::close(&client).await;
    let report = Report {
        store,
        promises,
        findings,
        purpose,
    };
    print(&if args.json {
        format!("{}\n", report.json())
    } else {
        report.text()
    })?;
    Ok(if report.is_fine() {
        code::DONE
    } else {
        code::HELD
    })
}

struct Report {
    store: String,
    promises: Promises,
    findings: Vec<Finding>,
    purpose: Purpose,
}

/// What the URL alone gives away.
fn of_url(url: &StoreUrl) -> Vec<Finding> {
    let mut findings = Vec::new();
    let several = url.scheme == "redlock" || url.scheme == "redlocks";
    let hosts: Vec<String> = match several {
        // Each may have credentials of its own.
        true => {
            let hosts = url.clone().take_hosts().unwrap_or_default();
            hosts.into_iter().map(|host| host.host).collect()
        }
        false => url.hosts.clone(),
    };
    let away: Vec<&str> = hosts
        .iter()
        .map(|host| without_port(host))
        .filter(|host| !is_loopback(host))
        .collect();
    let scheme = url.scheme.as_str();
    // Databases have TLS to another machine unless an option says otherwise, of which their engine tells.
    let database = matches!(scheme, "mysql" | "mariadb" | "postgres" | "postgresql");
    let plain = !database
        && !matches!(scheme, "redlocks" | "etcds")
        && !scheme.starts_with("rediss")
        && !scheme.ends_with("+tls")
        && url.clone().take("tls-ca").is_none();
    if plain && let Some(host) = away.first() {
        findings.push(Finding {
            purpose: Purpose::Correctness,
            what: format!(
                "{host} is another machine, and what goes there is not encrypted: whoever sits between can read the \
                 password and take every lock"
            ),
            change: match scheme {
                "etcd" => "use etcds://, or a tunnel",
                "zookeeper" => "use tls-ca=FILE, or a tunnel",
                _ => "use the scheme with TLS (rediss://, redlocks://), or a tunnel",
            }
            .into(),
        });
    }
    if several {
        let mut hosts: Vec<&str> = hosts.iter().map(|host| without_port(host)).collect();
        hosts.sort_unstable();
        let nodes = hosts.len();
        hosts.dedup();
        if hosts.len() < nodes {
            findings.push(Finding {
                purpose: Purpose::Correctness,
                what: format!(
                    "{nodes} nodes share {} machines, and fail together",
                    hosts.len()
                ),
                change: "put every node on a machine of its own".into(),
            });
        }
    }
    findings
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(host, _)| host),
    }
}

fn is_loopback(host: &str) -> bool {
    let address: Option<std::net::IpAddr> = host.parse().ok();
    host == "localhost" || host.is_empty() || address.is_some_and(|address| address.is_loopback())
}

impl Report {
    /// Whether nothing stands in the way of the purpose that was named.
    fn is_fine(&self) -> bool {
        !self.findings.iter().any(|finding| self.concerns(finding))
    }

    fn concerns(&self, finding: &Finding) -> bool {
        self.purpose == Purpose::Correctness || finding.purpose == Purpose::Efficiency
    }

    fn modes(&self) -> Vec<&'static str> {
        let promises = &self.promises;
        let modes = [
            ("exclusive", true),
            ("shared", promises.shared),
            ("permits", promises.permits),
        ];
        modes
            .into_iter()
            .filter(|mode| mode.1)
            .map(|mode| mode.0)
            .collect()
    }

    fn text(&self) -> String {
        let promises = &self.promises;
        let mut out = String::new();
        // Writing to a string does not fail.
        let mut line = |what: &str, text: &str| {
            let _ = writeln!(out, "{what:<12} {}", one_line(text));
        };
        line("store", &self.store);
        line("engine", promises.engine);
        line(
            "waiters",
            match (promises.order, promises.wake) {
                (Order::Fifo, Wake::Push) => "first come, first served; a message wakes the next one",
                (Order::Fifo, Wake::Poll) => "first come, first served; they poll the store",
                (Order::Unordered, Wake::Push) => "in no order; a message wakes them",
                (Order::Unordered, Wake::Poll) => "in no order; they poll the store",
            },
        );
        line("modes", &self.modes().join(", "));
        line("lock-delay", if promises.lock_delay { "yes" } else { "no" });
        line(
            "a hold ends",
            match promises.lease {
                LeaseKind::Lease => "with its own lease",
                LeaseKind::Session => "with the session of its client",
                LeaseKind::Connection => "with the connection of its client",
            },
        );
        line(
            "remembers",
            match promises.durability {
                Durability::Durable => "every grant, over a crash and a loss of power",
                Durability::Process => {
                    "every grant over a crash; a loss of power may cost the last ones"
                }
                Durability::Volatile => "nothing over a restart",
            },
        );
        line("assumes", promises.clock);
        line(
            "ttl",
            &format!(
                "{} to {}",
                in_words(promises.min_ttl),
                in_words(promises.max_ttl)
            ),
        );
        for (purpose, text) in [
            (Purpose::Efficiency, "efficiency"),
            (Purpose::Correctness, "correctness"),
        ] {
            let of_this = |finding: &&Finding| {
                purpose == Purpose::Correctness || finding.purpose == Purpose::Efficiency
            };
            let count = self.findings.iter().filter(of_this).count();
            let _ = match count {
                0 => writeln!(out, "\nfor {text}: nothing stands in the way"),
                _ => writeln!(out, "\nfor {text}: {count} in the way"),
            };
            for finding in self
                .findings
                .iter()
                .filter(|finding| finding.purpose == purpose)
            {
                let _ = writeln!(out, "  - {}", one_line(&finding.what));
                let _ = writeln!(out, "    change: {}", one_line(&finding.change));
            }
        }
        out
    }

    fn json(&self) -> Value {
        let promises = &self.promises;
        let name = |purpose| match purpose {
            Purpose::Efficiency => "efficiency",
            Purpose::Correctness => "correctness",
        };
        let findings = self.findings.iter().map(|finding| {
            json!({"purpose": name(finding.purpose), "what": finding.what, "change": finding.change})
        });
        json!({
            "store": self.store,
            "engine": promises.engine,
            "purpose": name(self.purpose),
            "fine": self.is_fine(),
            "promises": {
                "order": match promises.order { Order::Fifo => "fifo", Order::Unordered => "none" },
                "modes": self.modes(),
                "lock_delay": promises.lock_delay,
                "lease": match promises.lease {
                    LeaseKind::Lease => "lease",
                    LeaseKind::Session => "session",
                    LeaseKind::Connection => "connection",
                },
                "wake": match promises.wake { Wake::Push => "push", Wake::Poll => "poll" },
                "durability": match promises.durability {
                    Durability::Durable => "durable",
                    Durability::Process => "process",
                    Durability::Volatile => "volatile",
                },
                "clock": promises.clock,
                "min_ttl_ms": promises.min_ttl.as_millis() as u64,
                "max_ttl_ms": u64::try_from(promises.max_ttl.as_millis()).unwrap_or(u64::MAX),
            },
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(url: &str) -> usize {
        of_url(&StoreUrl::parse(url).unwrap()).len()
    }

    #[test]
    fn a_url_gives_away_what_is_not_encrypted_and_not_apart() {
        assert_eq!(found("redis://127.0.0.1:7000"), 0);
        assert_eq!(found("redis://[::1]:7000"), 0);
        assert_eq!(found("redis://localhost"), 0);
        assert_eq!(found("sqlite:/x"), 0);
        assert_eq!(found("redis://db.example:7000"), 1);
        assert_eq!(found("rediss://db.example:7000"), 0);
        assert_eq!(found("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"), 1);
        assert_eq!(found("redlock://a:1,b:1,c:1"), 1);
        assert_eq!(found("redlocks://:p@a:1,:q@b:1,:r@c:1"), 0);
        assert_eq!(found("redlocks://:p@a:1,:q@b:1,:r@a:2"), 1);
        assert_eq!(found("rediss+sentinel://a:1,b:1,c:1/main"), 0);
        assert_eq!(found("zookeeper://a:1?tls-ca=x"), 0);
        assert_eq!(found("zookeeper://a:1"), 1);
        assert_eq!(found("postgres://a/lock"), 0);
    }
}
