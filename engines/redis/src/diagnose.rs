//! The findings of the doctor about a store now, besides the limits of its promises.

use std::sync::Arc;

use fencelock_core::{DEFAULT_TTL, Durability, Finding, Purpose};
use redis::Cmd;

use crate::clocks;
use crate::config::Deployment;
use crate::connection::Connection;
use crate::error::untakeable;
use crate::keys::counter;
use crate::node::Node;
use crate::reply::setting;
use crate::server::ServerInfo;
use crate::servers::Servers;

pub(crate) async fn findings(servers: &Servers) -> Vec<Finding> {
    let mut findings = Vec::new();
    let nodes = servers.nodes();
    findings.extend(too_few(&servers.state.config.deployment, nodes.len()));
    let mut asked = Vec::new();
    for node in nodes {
        let connection = match node.connection(&servers.state).await {
            Ok(connection) => connection,
            Err(error) => {
                let what = format!("a server cannot be asked: {error}");
                findings.push(Finding::new(Purpose::Efficiency, what, "see why"));
                continue;
            }
        };
        findings.extend(rights(&connection).await);
        findings.extend(server(servers, &node, &connection).await);
        asked.push((connection.address(), connection));
    }
    let time = clocks::watch(asked, |connection, time| Box::pin(connection.send(time)));
    findings.extend(time.await);
    findings
}

fn too_few(deployment: &Deployment, masters: usize) -> Option<Finding> {
    let (what, change) = match deployment {
        Deployment::Sentinel { sentinels, .. } if sentinels.len() < 3 => (
            format!(
                "the URL names {} Sentinels: when they are away, a fail-over goes unnoticed",
                sentinels.len()
            ),
            "name three Sentinels or more",
        ),
        Deployment::Cluster(_) if masters < 3 => (
            format!(
                "the cluster has {masters} masters, and it takes three to replace one that fails"
            ),
            "add masters",
        ),
        _ => return None,
    };
    Some(Finding::new(Purpose::Efficiency, what, change))
}

/// The findings about one server.
async fn server(servers: &Servers, node: &Arc<Node>, connection: &Connection) -> Vec<Finding> {
    let config = &servers.state.config;
    let name = connection.address();
    let info = connection.send(Cmd::new().arg("INFO")).await.ok();
    let stats = connection
        .send(Cmd::new().arg("INFO").arg("commandstats"))
        .await;
    let info = ServerInfo::new(info.as_ref(), None).with_stats(stats.ok().as_ref());
    let mut findings = Vec::new();
    if let Some(master) = info.master() {
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!("{name} is a replica of {master}: no lock can be taken on it"),
            format!("name {master} in the URL, or let Sentinels name it (redis+sentinel://)"),
        ));
    } else {
        findings.extend(refusals(servers, &name, node, connection).await);
    }
    if let Some(up) = info.uptime().filter(|up| *up < DEFAULT_TTL)
        && servers.promises.durability != Durability::Durable
        && config.restart_delay.is_zero()
    {
        findings.push(Finding::new(
            Purpose::Correctness,
            format!(
                "{name} started {up:?} ago, and may have forgotten locks that clients still hold"
            ),
            "wait until the longest ttl in use is over, or open the store with restart-delay=TTL",
        ));
    }
    if !matches!(config.deployment, Deployment::One) {
        if info.number("connected_slaves") == Some(0) {
            findings.push(Finding::new(
                Purpose::Efficiency,
                format!("{name} has no replica: no server takes over from it"),
                "add a replica, or find out why it is not connected",
            ));
        }
        if config.replicas == 0 {
            findings.extend(cut_off(&name, connection, &info).await);
        }
    }
    findings
}

/// Checks whether a master continues to grant without its replicas.
async fn cut_off(name: &str, connection: &Connection, info: &ServerInfo) -> Option<Finding> {
    let wanted = ["min-replicas-to-write 1"];
    let mut get = Cmd::new();
    get.arg("CONFIG").arg("GET").arg("min-replicas-to-write");
    let value = setting(&connection.send(&get).await.ok()?)?;
    let (what, change) = match value.as_str() {
        "0" => (
            format!(
                "{name} goes on granting when it is cut off from its replicas (min-replicas-to-write is 0)"
            ),
            info.how_to_set(&wanted),
        ),
        _ if !info.settings_last() => (
            format!(
                "{name}: min-replicas-to-write may have been set with CONFIG SET alone, which ends with the server process: after its next start it may go on granting when it is cut off from its replicas"
            ),
            info.how_to_keep(&wanted),
        ),
        _ => return None,
    };
    let change = format!("{change}; or open the store with replicas=N");
    Some(Finding::new(Purpose::Correctness, what, change))
}

/// Checks whether a lock could be taken. The commands write nothing: the server refuses them to every user, but only after it
/// has checked rights, memory and disk.
async fn refusals(
    servers: &Servers,
    name: &str,
    node: &Arc<Node>,
    connection: &Connection,
) -> Vec<Finding> {
    let cluster = servers.cluster();
    let slot = cluster.and_then(|cluster| cluster.slot_of(node));
    if cluster.is_some() && slot.is_none() {
        // This server has no locks.
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
        ("writing", connection.try_out(&write).await),
        ("running a script", connection.try_out(&script).await),
        (
            "publishing to a channel fencelock:*",
            connection.try_out(&publish).await,
        ),
        (
            "subscribing to a channel fencelock:*",
            connection.try_listening(channel).await,
        ),
    ];
    let tried = tried
        .into_iter()
        .filter_map(|(action, error)| Some((action, error?)));
    tried
        .filter(|(_, error)| error.code().is_some_and(|code| code != "ERR"))
        .map(|(action, error)| untakeable(name, action, &error))
        .collect()
}

/// Checks rights that are needed only when something else has failed.
async fn rights(connection: &Connection) -> Vec<Finding> {
    let mut findings = Vec::new();
    // No connection has the id 0.
    let kill = ["CLIENT", "KILL", "ID", "0"];
    let config = ["CONFIG", "GET", "appendfsync"];
    for (words, missing) in [
        (
            &kill[..],
            "so after a broken connection a lock may stay taken for a whole lease",
        ),
        (
            &config[..],
            "so it is unknown what a loss of power would cost",
        ),
    ] {
        let mut command = Cmd::new();
        words.iter().for_each(|word| {
            command.arg(*word);
        });
        let error = connection.send(&command).await.err();
        if error.is_some_and(|error| error.code() == Some("NOPERM")) {
            let what = format!("this user may not {} {}, {missing}", words[0], words[1]);
            let change = format!("ACL SETUSER ... +{}|{}", words[0], words[1]).to_lowercase();
            findings.push(Finding::new(Purpose::Correctness, what, &change));
        }
    }
    findings
}
