//! Stores on servers that were started here, so that they can be harmed: one file per engine, and no other file knows
//! which engines there are.

mod etcd;
mod groups;
mod redis;
mod redlock;
mod sql;
mod sqlite;
mod zookeeper;

use std::time::Duration;

use fencelock_testbed::{ClockShim, Failure, Redis, Result};

use crate::harm::Harm;
use crate::history::Rule;

/// What breaks when the store gives a lock to two: nothing else may.
pub(crate) const TWO_HOLDERS: &[Rule] = &[
    Rule::Exclusion,
    Rule::LossFirst,
    Rule::Kept,
    Rule::FenceOpen,
];

/// What a lock that hangs on a connection does not promise, and why.
pub(crate) fn of_connections(harm: Harm) -> (Vec<Rule>, &'static str) {
    match harm {
        // The last three end with a reset, too.
        Harm::Restart
        | Harm::KillConnections
        | Harm::Reset
        | Harm::Partition
        | Harm::LoseRequests
        | Harm::LoseAnswers => (
            TWO_HOLDERS.into(),
            "a lock that hangs on a connection is free before its holder knows that the connection ended",
        ),
        _ => (Vec::new(), ""),
    }
}

/// How far a clock jumps: past every lease.
pub(crate) const JUMP: Duration = Duration::from_secs(10);

/// Sets a clock forward, or back again.
fn jump(clock: &ClockShim, forward: bool) -> Result<()> {
    match forward {
        true => clock.forward(JUMP),
        false => clock.back(JUMP),
    }
}

/// `127.0.0.1:PORT,127.0.0.1:PORT`, as URLs have hosts.
pub(crate) fn loopback(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    hosts.join(",")
}

/// In milliseconds: a line in Redis that a fail-over or a restart brought back is gone by itself.
const FORGOTTEN_LINE: u64 = 20_000;

/// Ends every connection of clients to a Redis but the one that says so.
fn kill_clients(redis: &Redis) -> Result<()> {
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
    redis.command::<()>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"])
}

/// The keys on these servers but those that stand there however many names were locked.
fn keys_left(servers: &[Redis], stands: fn(&str) -> bool) -> Result<Vec<String>> {
    let mut left = Vec::new();
    for server in servers {
        let keys: Vec<String> = server.command(&["KEYS", "*"])?;
        let keys = keys.into_iter().filter(|key| !stands(key));
        left.extend(keys.map(|key| format!("the key {key:?} on port {}", server.port())));
    }
    Ok(left)
}

/// A store on servers that were started here; they are gone when it is dropped.
pub(crate) trait Bed: Send {
    /// The name that it was started by.
    fn name(&self) -> &'static str;

    /// The ports of its nodes on 127.0.0.1; empty if it has no server.
    fn ports(&self) -> Vec<u16>;

    /// The store's URL, its nodes being reached by these ports: their own, or those of proxies.
    fn url(&self, ports: &[u16]) -> String;

    /// What can be done to its servers.
    fn harms(&self) -> Vec<Harm>;

    /// Begins to harm a node.
    fn begin(&mut self, harm: Harm, node: usize) -> Result<()>;

    /// Heals it.
    fn heal(&mut self, harm: Harm, node: usize) -> Result<()>;

    /// What the engine does not promise under such a fault, and why. Nothing, if it promises everything.
    fn excuses(&self, harm: Harm) -> (Vec<Rule>, &'static str);

    /// What the engine says of the store's limits, before anything is done to it.
    fn hear(&mut self, limits: &[String]) {
        let _ = limits;
    }

    /// What befell the store by itself and what the engine does not promise then, and why: asked when all is over.
    fn befell(&mut self) -> Option<(String, Vec<Rule>, &'static str)> {
        None
    }

    /// For how long a waiter that died may hold up the line, in milliseconds.
    fn window(&self) -> u64 {
        2000
    }

    /// How long the server itself may take to forget what nobody asks about any more, in milliseconds.
    fn forgets_after(&self) -> u64 {
        0
    }

    /// What is on the server beside what stands there however many names were locked.
    fn left(&mut self) -> Result<Vec<String>>;
}

/// How to start one kind of store.
type Start = fn() -> Result<Box<dyn Bed>>;

/// The kinds of stores: the word of `--start`, what it is, how to start it.
const KINDS: &[(&str, &str, Start)] = &[
    ("sqlite", "a SQLite file", sqlite::start),
    ("redis", "one Redis, appendfsync always", redis::start),
    (
        "redis-volatile",
        "one Redis that keeps nothing over a restart",
        redis::start_volatile,
    ),
    (
        "sentinel",
        "a Redis master, two replicas that have each grant, three Sentinels",
        groups::start_sentinel,
    ),
    (
        "sentinel-async",
        "the same, and grants do not wait for replicas",
        groups::start_sentinel_async,
    ),
    (
        "cluster",
        "a Redis Cluster of three masters with a replica each, that has each grant",
        groups::start_cluster,
    ),
    (
        "redlock",
        "five Redis servers of which a majority decides",
        redlock::start,
    ),
    ("mysql", "a MariaDB, rows that expire", sql::start_mariadb),
    (
        "mysql-for-update",
        "a MariaDB, rows locked by transactions",
        sql::start_mysql_for_update,
    ),
    ("mysql-get-lock", "a MariaDB, GET_LOCK", sql::start_get_lock),
    (
        "postgres",
        "a PostgreSQL, rows that expire",
        sql::start_postgres,
    ),
    (
        "postgres-advisory",
        "a PostgreSQL, advisory locks",
        sql::start_advisory,
    ),
    ("etcd", "one etcd", etcd::start_one),
    ("etcd-cluster", "three etcd members", etcd::start_three),
    ("zookeeper", "three ZooKeeper servers", zookeeper::start),
];

/// The words of `--start`, each with what it means.
pub(crate) fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().map(|(word, what, _)| (*word, *what))
}

/// Starts a store.
pub(crate) fn start(word: &str) -> Result<Box<dyn Bed>> {
    let Some((_, _, start)) = KINDS.iter().find(|(known, _, _)| *known == word) else {
        let known: Vec<_> = kinds().map(|(word, _)| word).collect();
        return Err(Failure::new(format!(
            "{word:?} is nothing that can be started; there are {}",
            known.join(", ")
        )));
    };
    start()
}

/// A fault that this kind of store does not know.
pub(crate) fn unknown(bed: &dyn Bed, harm: Harm) -> Failure {
    Failure::new(format!("{} knows no {harm}", bed.name()))
}
