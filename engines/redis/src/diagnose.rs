//! What stands between a store, as it is now, and what locks are for: beyond the limits of its promises.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{
    Asked, ClockWatch, DEFAULT_TTL, Durability, Engine, Finding, Purpose, Result,
};
use redis::{Cmd, RedisError, Value};

use crate::config::Servers;
use crate::connection::Connection;
use crate::engine::Redis;
use crate::error::untakeable;
use crate::keys::counter;
use crate::node::Node;
use crate::server::ServerInfo;

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
            let name = link.client.get_connection_info().addr().to_string();
            rights(&link, &mut findings).await;
            self.of_server(&name, &node, &link, &mut findings).await;
            links.push((name, link));
        }
        findings.extend(clocks(links, |link, time| Box::pin(link.send(time))).await);
        Ok(findings)
    }

    /// What one server says about itself.
    async fn of_server(
        &self,
        name: &str,
        node: &Arc<Node>,
        link: &Connection,
        findings: &mut Vec<Finding>,
    ) {
        let config = &self.hub.config;
        let info = link.send(Cmd::new().arg("INFO")).await.ok();
        let stats = link.send(Cmd::new().arg("INFO").arg("commandstats")).await;
        let facts = ServerInfo::new(info.as_ref(), None).with_stats(stats.ok().as_ref());
        if let Some(master) = facts.master() {
            findings.push(Finding::new(
                Purpose::Efficiency,
                format!("{name} is a replica of {master}: no lock can be taken on it"),
                format!("name {master} in the URL, or let Sentinels name it (redis+sentinel://)"),
            ));
        } else {
            findings.extend(self.refusals(name, node, link).await);
        }
        if let Some(up) = facts.uptime().filter(|up| *up < DEFAULT_TTL)
            && self.promises().durability != Durability::Durable
            && config.restart_delay.is_zero()
        {
            findings.push(Finding::new(
                Purpose::Correctness,
                format!("{name} started {up:?} ago, and may have forgotten locks whose holders still believe"),
                "wait until the longest ttl in use is over, or open the store with restart-delay=TTL",
            ));
        }
        if !matches!(config.servers, Servers::One) {
            self.of_master(name, link, &facts, findings).await;
        }
    }

    /// What concerns a server that a replica is to take over from.
    async fn of_master(
        &self,
        name: &str,
        link: &Connection,
        facts: &ServerInfo,
        findings: &mut Vec<Finding>,
    ) {
        if facts.count("connected_slaves") == Some(0) {
            findings.push(Finding::new(
                Purpose::Efficiency,
                format!("{name} has no replica: nobody takes over from it"),
                "add a replica, or see why it is not connected",
            ));
        }
        if self.hub.config.replicas > 0 {
            return;
        }
        let wanted = ["min-replicas-to-write 1"];
        let or = "or open the store with replicas=N";
        match setting(link, "min-replicas-to-write").await.as_deref() {
            Some("0") => findings.push(Finding::new(
                Purpose::Correctness,
                format!("{name} goes on granting when it is cut off from its replicas (min-replicas-to-write is 0)"),
                format!("{}; {or}", facts.lasting(&wanted)),
            )),
            Some(_) if !facts.settings_last() => findings.push(Finding::new(
                Purpose::Correctness,
                format!(
                    "{name} grants nothing when it is cut off from its replicas until its next start only, as far as can \
                     be seen: min-replicas-to-write may have been set with CONFIG SET, which ends with the process"
                ),
                format!("{}; {or}", facts.keep(&wanted)),
            )),
            _ => {}
        }
    }

    /// Whether a lock could be taken: by commands that the server refuses to everybody, but only after it has looked at
    /// rights, memory and disk. They write nothing.
    async fn refusals(&self, name: &str, node: &Arc<Node>, link: &Connection) -> Vec<Finding> {
        let cluster = self.hub.cluster();
        let slot = cluster.and_then(|cluster| cluster.slot_of(node));
        if cluster.is_some() && slot.is_none() {
            // It has no locks.
            return Vec::new();
        }
        let counter = counter(slot);
        let mut write = redis::cmd("SET");
        write.arg(&*counter).arg(0).arg("NX").arg("XX");
        let mut script = redis::cmd("EVAL");
        script.arg("return 1").arg(1).arg(&*counter);
        let channel = "fencelock:doctor";
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(channel).arg("probe");
        let tried = [
            ("writing", link.try_out(&write).await),
            ("running a script", link.try_out(&script).await),
            (
                "publishing to a channel fencelock:*",
                link.try_out(&publish).await,
            ),
            (
                "subscribing to a channel fencelock:*",
                link.try_listening(channel).await,
            ),
        ];
        let refused = |error: &RedisError| error.code().is_some_and(|code| code != "ERR");
        let tried = tried
            .into_iter()
            .filter_map(|(action, error)| Some((action, error?)));
        tried
            .filter(|(_, error)| refused(error))
            .map(|(action, error)| untakeable(name, action, &error))
            .collect()
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
async fn rights(link: &Connection, findings: &mut Vec<Finding>) {
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

async fn setting(link: &Connection, name: &str) -> Option<String> {
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
