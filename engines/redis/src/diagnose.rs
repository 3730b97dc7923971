//! What stands between a store, as it is now, and what locks are for: beyond the limits of its promises.

use std::pin::Pin;
use std::time::Duration;

use fencelock_core::{
    Asked, ClockWatch, DEFAULT_TTL, Durability, Engine, Finding, Purpose, Result,
};
use redis::{Cmd, RedisError, Value};

use crate::config::Servers;
use crate::connection::Link;
use crate::engine::Redis;
use crate::facts::Facts;

impl Redis {
    pub(crate) async fn findings(&self) -> Result<Vec<Finding>> {
        let (hub, promises) = (&self.hub, self.promises());
        let limits = promises.limits.into_iter().map(Finding::from);
        let mut findings: Vec<Finding> = limits.collect();
        let config = &hub.config;
        let nodes = hub.nodes();
        match &config.servers {
            Servers::One => {}
            Servers::Sentinel { sentinels, .. } if sentinels.len() < 3 => findings.push(Finding::new(
                Purpose::Efficiency,
                format!(
                    "the URL names {} Sentinels: when they are away, a fail-over goes unnoticed",
                    sentinels.len()
                ),
                "name three Sentinels or more",
            )),
            Servers::Sentinel { .. } => {}
            Servers::Cluster(_) if nodes.len() < 3 => findings.push(Finding::new(
                Purpose::Efficiency,
                format!(
                    "the cluster has {} masters, and it takes three to replace one that dies",
                    nodes.len()
                ),
                "add masters",
            )),
            Servers::Cluster(_) => {}
        }
        let mut links = Vec::new();
        for node in nodes {
            let link = match node.link(hub).await {
                Ok(link) => link,
                Err(error) => {
                    let what = format!("a server cannot be asked: {error}");
                    findings.push(Finding::new(Purpose::Efficiency, what, "see why"));
                    continue;
                }
            };
            let whole = matches!(config.servers, Servers::One);
            let name = link.client.get_connection_info().addr().to_string();
            rights(&link, &mut findings).await;
            let info = link.send(Cmd::new().arg("INFO")).await.ok();
            let facts = Facts::new(info.as_ref(), None);
            if let Some(up) = facts.uptime().filter(|up| *up < DEFAULT_TTL)
                && promises.durability != Durability::Durable
                && config.restart_delay.is_zero()
            {
                findings.push(Finding::new(
                    Purpose::Correctness,
                    format!("{name} started {up:?} ago, and may have forgotten locks whose holders still believe"),
                    "wait until the longest ttl in use is over, or open the store with restart-delay=TTL",
                ));
            }
            let replicas = facts.count("connected_slaves");
            if !whole && replicas == Some(0) {
                findings.push(Finding::new(
                    Purpose::Efficiency,
                    format!("{name} has no replica: nobody takes over from it"),
                    "add a replica, or see why it is not connected",
                ));
            }
            let least = setting(&link, "min-replicas-to-write").await;
            if !whole && least.as_deref() == Some("0") && config.replicas == 0 {
                findings.push(Finding::new(
                    Purpose::Correctness,
                    format!("{name} goes on granting when it is cut off from its replicas (min-replicas-to-write is 0)"),
                    "CONFIG SET min-replicas-to-write 1; or open the store with replicas=N",
                ));
            }
            links.push((name, link));
        }
        findings.extend(clocks(links, |link, time| Box::pin(link.send(time))).await);
        Ok(findings)
    }
}

/// A question to a server.
pub(crate) type Asking<'a> = Pin<Box<dyn Future<Output = Result<Value, RedisError>> + Send + 'a>>;

/// Watches the clocks of these servers for a second, all at once; `time` asks one of them for TIME.
pub(crate) async fn clocks<L: Send + Sync>(
    servers: Vec<(String, L)>,
    time: impl for<'a> Fn(&'a L, &'a Cmd) -> Asking<'a> + Send + Sync,
) -> Vec<Finding> {
    let mut command = Cmd::new();
    command.arg("TIME");
    let mut watched: Vec<_> = servers
        .into_iter()
        .map(|(name, server)| (ClockWatch::new(name), server))
        .collect();
    for round in 0..ClockWatch::TIMES {
        if round > 0 {
            tokio::time::sleep(ClockWatch::PAUSE).await;
        }
        for (watch, server) in &mut watched {
            let asked = Asked::now();
            if let Ok(answer) = time(server, &command).await
                && let Some(there) = seconds(&answer)
            {
                watch.told(asked, there);
            }
        }
    }
    watched
        .iter()
        .flat_map(|(watch, _)| watch.findings())
        .collect()
}

fn seconds(answer: &Value) -> Option<Duration> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let number = |at: usize| match parts.get(at)? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    };
    Some(Duration::from_secs(number(0)?) + Duration::from_micros(number(1)?))
}

/// Rights that are missed later only, when something else went wrong.
async fn rights(link: &Link, findings: &mut Vec<Finding>) {
    // There is no connection with this id.
    let kill = ["CLIENT", "KILL", "ID", "0"];
    let config = ["CONFIG", "GET", "appendfsync"];
    for (words, missing) in [
        (
            &kill[..],
            "so a withdrawal after a broken connection is repeated for a whole lease",
        ),
        (
            &config[..],
            "so nobody can say what a loss of power would cost",
        ),
    ] {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let refused = link.send(&command).await.err();
        let refused = refused.is_some_and(|error| error.code() == Some("NOPERM"));
        let what = format!("this user may not {} {}, {missing}", words[0], words[1]);
        let change = format!("ACL SETUSER ... +{}|{}", words[0], words[1]).to_lowercase();
        if refused {
            findings.push(Finding::new(Purpose::Correctness, what, &change));
        }
    }
}

async fn setting(link: &Link, name: &str) -> Option<String> {
    let mut command = Cmd::new();
    command.arg("CONFIG").arg("GET").arg(name);
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    match link.send(&command).await.ok()? {
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text(value)),
        Value::Array(items) => items.get(1).and_then(text),
        _ => None,
    }
}
