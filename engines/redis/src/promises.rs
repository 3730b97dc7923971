use std::time::Duration;

use fencelock_core::{Durability, Finding, Floor, Promises, Wake};

use crate::config::{Config, Deployment};
use crate::server::ServerInfo;

/// The promises of a store of these servers: no more than the weakest of them can keep.
pub(crate) fn of(servers: &[ServerInfo], config: &Config) -> Promises {
    let durability = servers.iter().map(durability).min_by_key(rank);
    let mut all: Vec<Finding> = Vec::new();
    for limit in servers.iter().flat_map(|info| limits(info, config)) {
        if !all.contains(&limit) {
            all.push(limit);
        }
    }
    let engine = match config.deployment {
        Deployment::One => "redis",
        Deployment::Sentinel { .. } => "redis-sentinel",
        Deployment::Cluster(_) => "redis-cluster",
    };
    let clock = match config.deployment {
        Deployment::One => {
            "the server's clock runs at about the right rate and is not set forward while a lock is held"
        }
        _ => {
            "the servers' clocks run at about the right rate, show the same time, and are not set forward while \
                 a lock is held"
        }
    };
    Promises::full(engine, clock)
        .record(true)
        // In a cluster each slot has its own counter.
        .floor(match config.is_cluster() {
            true => Floor::Name,
            false => Floor::Store,
        })
        .wake(Wake::Push)
        .durability(durability.unwrap_or(Durability::Volatile))
        .min_ttl(Duration::from_millis(10))
        // A fail-over would lose a lease that is longer than the delay.
        .max_ttl(match config.promotion_delay {
            Duration::ZERO => Duration::from_secs(10 * 365 * 86_400),
            delay => delay,
        })
        .claim_window(config.claim_window)
        .limits(all)
}

/// Why locks on one server are not correct in all cases.
fn limits(info: &ServerInfo, config: &Config) -> Vec<Finding> {
    if !info.is_known() {
        return vec![Finding::against_correctness(
            "the server does not say how it keeps data: this user may not read INFO",
            "allow the command INFO, and CONFIG GET, to this user",
        )];
    }
    let forgets = (!config.delays()).then(|| forgets(info)).flatten();
    let mut limits: Vec<Finding> = forgets.into_iter().chain(evicts(info)).collect();
    limits.extend(replication(info, config));
    limits
}

/// What the server keeps with its current settings.
fn durability_now(info: &ServerInfo) -> Durability {
    match (info.get("aof_enabled"), info.fsync.as_deref()) {
        (Some("1"), Some("always")) => Durability::Durable,
        (Some("1"), _) => Durability::Process,
        _ => Durability::Volatile,
    }
}

/// What it keeps with those settings that also survive its next start.
fn durability(info: &ServerInfo) -> Durability {
    match durability_now(info) {
        now if info.settings_last() => now,
        Durability::Durable | Durability::Process if info.append_only_from_start() => {
            Durability::Process
        }
        _ => Durability::Volatile,
    }
}

fn rank(durability: &Durability) -> u8 {
    match durability {
        Durability::Durable => 2,
        Durability::Process => 1,
        _ => 0,
    }
}

/// What the server may lose.
fn forgets(info: &ServerInfo) -> Option<Finding> {
    let wanted = ["appendonly yes", "appendfsync always"];
    let now = durability_now(info);
    let (what, change) = match (now, durability(info)) {
        (_, Durability::Durable) => return None,
        (Durability::Durable, Durability::Process) => (
            "appendfsync may have been set with CONFIG SET alone, which ends with the server process: after its next start a loss of power may lose the last grants, and the server grants those locks again",
            info.how_to_keep(&wanted),
        ),
        (_, Durability::Process) => (
            "a loss of power may lose the last grants, and the server grants those locks again",
            info.how_to_set(&wanted[1..]),
        ),
        (Durability::Durable | Durability::Process, _) => (
            "appendonly may have been set with CONFIG SET alone, which ends with the server process: its next start forgets every lock, and the server grants it again",
            match now {
                Durability::Durable => info.how_to_keep(&wanted),
                _ => info.how_to_set(&wanted),
            },
        ),
        _ => (
            "a restart of the server forgets every lock, and grants it again",
            info.how_to_set(&wanted),
        ),
    };
    let or = "or open the store with restart-delay=TTL, the longest ttl in use";
    Some(Finding::against_correctness(
        what,
        format!("{change}; {or}"),
    ))
}

/// A finding if the server evicts keys, and so may evict locks.
fn evicts(info: &ServerInfo) -> Option<Finding> {
    let wanted = ["maxmemory-policy noeviction"];
    if info.number("maxmemory").is_none_or(|most| most == 0) {
        return None;
    }
    match info.get("maxmemory_policy").unwrap_or("noeviction") {
        "noeviction" if info.settings_last() => None,
        "noeviction" => Some(Finding::against_correctness(
            "maxmemory-policy may have been set with CONFIG SET alone, which ends with the server process: after its next start the server may evict keys, and locks with them",
            info.how_to_keep(&wanted),
        )),
        policy => Some(Finding::against_correctness(
            format!("when memory is short the server evicts keys ({policy}), and locks with them"),
            format!(
                "{}; or keep locks on a server of their own",
                info.how_to_set(&wanted)
            ),
        )),
    }
}

/// What a fail-over may lose.
fn replication(info: &ServerInfo, config: &Config) -> Option<Finding> {
    let replicas = info.number("connected_slaves").unwrap_or(0);
    let asked = u64::from(config.replicas);
    if !config.promotion_delay.is_zero() {
        return (asked < replicas.max(1)).then(|| {
            Finding::against_correctness(
                "a fail-over forgets locks, and frees them once promotion-delay is over; it does not if a Sentinel that \
                 voted for it hears nothing of its outcome for 1.5 s while a holder beside it still reaches the old master",
                format!("open the store with replicas={}", replicas.max(1)),
            )
        });
    }
    if replicas <= asked {
        return None;
    }
    let what = match asked {
        0 => "the server has replicas: after a fail-over to one of them the last grants may be forgotten, and granted again"
            .to_owned(),
        _ => format!(
            "the server has {replicas} replicas, and a grant counts when {asked} have it: after a fail-over to another it \
             may be forgotten, and granted again"
        ),
    };
    let mut change = format!("open the store with replicas={replicas}");
    if matches!(config.deployment, Deployment::Sentinel { .. }) {
        change.push_str(", or with promotion-delay=TTL, the longest ttl in use");
    }
    Some(Finding::against_correctness(what, change))
}
