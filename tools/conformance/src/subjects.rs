//! The engines under test, a line each in [`all`].

mod cluster;
mod etcd;
mod memory;
mod mysql;
mod postgres;
mod redis;
mod redlock;
mod sentinel;
mod sqlite;
mod zookeeper;

use crate::subject::Subject;

/// Every engine.
#[must_use]
pub fn all() -> Vec<&'static dyn Subject> {
    vec![
        &memory::InMemory,
        &sqlite::InFile,
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
    ]
}
