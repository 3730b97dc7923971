//! Stores on servers that this program starts, so that faults can be injected into them: one file per engine. No other
//! file knows which engines there are.

mod etcd;
mod groups;
mod http;
mod migrate;
mod redis;
mod redlock;
mod shards;
mod sql;
mod sqlite;
mod store;
mod zookeeper;

use fencelock_testbed::{Failure, Result};

use crate::Relaunch;

pub(crate) use store::{JUMP, TestStore, loopback, of_connections};

/// How to start one kind of store. Some are started by this program itself.
type Start = fn(&Relaunch) -> Result<Box<dyn TestStore>>;

/// The kinds of stores: the name at `--start`, a description, how to start it.
const KINDS: &[(&str, &str, Start)] = &[
    ("sqlite", "a SQLite file", |_| sqlite::start()),
    ("redis", "one Redis, appendfsync always", |_| redis::start()),
    (
        "redis-volatile",
        "one Redis that keeps nothing over a restart",
        |_| redis::start_volatile(),
    ),
    (
        "sentinel",
        "a Redis master, two replicas that have each grant, three Sentinels",
        |_| groups::start_sentinel(),
    ),
    (
        "sentinel-async",
        "the same, and grants do not wait for replicas",
        |_| groups::start_sentinel_async(),
    ),
    (
        "cluster",
        "a Redis Cluster of three masters with a replica each, that has each grant",
        |_| groups::start_cluster(),
    ),
    (
        "migrate",
        "two Redis servers between which the locks move, there and back",
        |_| migrate::start(),
    ),
    (
        "migrate-cluster",
        "a Redis and a Redis Cluster between which the locks move, there and back",
        |_| migrate::start_cluster(),
    ),
    (
        "migrate-shards",
        "two Redis servers as shards, to which a third one is added, and removed",
        |_| migrate::start_shards(),
    ),
    (
        "shards",
        "three Redis servers as shards, of which one after the other is away",
        |_| shards::start(),
    ),
    (
        "redlock",
        "five Redis servers of which a majority decides",
        |_| redlock::start(),
    ),
    ("mysql", "a MariaDB, rows that expire", |_| {
        sql::start_mariadb()
    }),
    (
        "mysql-for-update",
        "a MariaDB, rows locked by transactions",
        |_| sql::start_mysql_for_update(),
    ),
    ("mysql-get-lock", "a MariaDB, GET_LOCK", |_| {
        sql::start_get_lock()
    }),
    ("postgres", "a PostgreSQL, rows that expire", |_| {
        sql::start_postgres()
    }),
    ("postgres-advisory", "a PostgreSQL, advisory locks", |_| {
        sql::start_advisory()
    }),
    ("etcd", "one etcd", |_| etcd::start_one()),
    ("etcd-cluster", "three etcd members", |_| {
        etcd::start_three()
    }),
    ("zookeeper", "three ZooKeeper servers", |_| {
        zookeeper::start()
    }),
    (
        "http-redis",
        "two replicas of the lock service before one Redis, appendfsync always",
        http::start_redis,
    ),
    (
        "http-balanced",
        "the same behind a load balancer, whose address is the only one that clients know",
        http::start_balanced,
    ),
    (
        "http-postgres",
        "two replicas of the lock service before a PostgreSQL",
        http::start_postgres,
    ),
    (
        "http-mysql",
        "two replicas of the lock service before a MariaDB",
        http::start_mariadb,
    ),
    (
        "http-etcd",
        "two replicas of the lock service before one etcd, which own their claims",
        http::start_etcd,
    ),
    (
        "http-zookeeper",
        "two replicas of the lock service before one ZooKeeper, which own their claims",
        http::start_zookeeper,
    ),
];

/// The names at `--start` with their descriptions.
pub(crate) fn kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    KINDS.iter().map(|(word, what, _)| (*word, *what))
}

/// Starts a store. `relaunch` starts this program again.
pub(crate) fn start(word: &str, relaunch: &Relaunch) -> Result<Box<dyn TestStore>> {
    let Some((_, _, start)) = KINDS.iter().find(|(known, _, _)| *known == word) else {
        let known: Vec<_> = kinds().map(|(word, _)| word).collect();
        return Err(Failure::new(format!(
            "{word:?} cannot be started; the stores are {}",
            known.join(", ")
        )));
    };
    start(relaunch)
}
