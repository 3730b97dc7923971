//! The engines under test, one line each in [`all`].

mod breaker;
mod cluster;
mod etcd;
mod http;
mod memory;
mod migrate;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod sentinel;
mod shards;
mod sqlite;
mod zookeeper;

use crate::subject::Subject;

pub use http::OneReplica;

/// With the value `all`, [`all`] also has subjects that take long and rarely find what the others do not find.
pub const MORE: &str = "FENCELOCK_SUBJECTS";

/// Whether the environment asks for all subjects.
#[must_use]
pub fn wants_more() -> bool {
    std::env::var_os(MORE).is_some_and(|value| value == "all")
}

/// Every engine.
#[must_use]
pub fn all() -> Vec<&'static dyn Subject> {
    let more: &[&'static dyn Subject] = match wants_more() {
        true => &[
            &http::BALANCED,
            &http::SQLITE,
            &http::POSTGRES,
            &http::MYSQL,
            &http::ETCD,
            &http::ZOOKEEPER,
            &http::REDLOCK,
            &migrate::MORE[0],
            &migrate::MORE[1],
            &migrate::MORE[2],
            &migrate::MORE[3],
            &migrate::MORE[4],
            &migrate::MORE[5],
            &migrate::MORE[6],
            &migrate::MORE[7],
            &migrate::CHANGES[0],
            &migrate::CHANGES[1],
            &migrate::CHANGES[2],
        ],
        false => &[],
    };
    let mut all = ordinary();
    all.extend(more);
    all
}

fn ordinary() -> Vec<&'static dyn Subject> {
    vec![
        &memory::InMemory,
        &breaker::BehindBreaker,
        &sqlite::InFile,
        &shards::ThreeFiles,
        &migrate::IN_BOTH,
        &redis::OneRedis,
        &mysql::LEASE,
        &mysql::FOR_UPDATE,
        &mysql::GET_LOCK,
        &postgres::LEASE,
        &postgres::ADVISORY,
        &zookeeper::OneZooKeeper,
        &zookeeper::ThreeZooKeepers,
        &sentinel::Sentinels,
        &cluster::Cluster,
        &etcd::OneEtcd,
        &etcd::ThreeEtcds,
        &redlock::FIVE_NODES,
        &http::MEMORY,
        &http::REDIS,
    ]
}
