//! Stores on servers that are started here, so that faults can be injected into them: one file per engine. No other file
//! knows which engines there are.

mod etcd;
mod groups;
mod redis;
mod redlock;
mod sql;
mod sqlite;
mod store;
mod zookeeper;

use fencelock_testbed::{Failure, Result};

pub(crate) use store::{JUMP, TestStore, loopback, of_connections};

/// How to start one kind of store.
type Start = fn() -> Result<Box<dyn TestStore>>;

/// The kinds of stores: the name at `--start`, a description, how to start it.
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

/// The names at `--start` with their descriptions.
pub(crate) fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().map(|(word, what, _)| (*word, *what))
}

/// Starts a store.
pub(crate) fn start(word: &str) -> Result<Box<dyn TestStore>> {
    let Some((_, _, start)) = KINDS.iter().find(|(known, _, _)| *known == word) else {
        let known: Vec<_> = kinds().map(|(word, _)| word).collect();
        return Err(Failure::new(format!(
            "{word:?} cannot be started; the stores are {}",
            known.join(", ")
        )));
    };
    start()
}
