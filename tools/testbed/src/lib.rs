//! Real servers for tests: started on free loopback ports in temporary directories, stopped, killed and restarted at
//! will, and gone when their handle is dropped or the test process dies, however it dies. And a TCP proxy that delays,
//! holds, loses and cuts what passes through it, and worker processes to be stopped and killed.
//!
//! One file per kind of server. Every call here blocks for milliseconds at most, unless it says otherwise, and needs no
//! async runtime.

mod certificates;
mod clock_shim;
mod dir;
mod etcd;
mod failure;
mod http;
mod mariadb;
mod peers;
mod port;
mod postgres;
mod process;
mod proxy;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod redlock;
mod worker;
mod zookeeper;

pub use clock_shim::ClockShim;
pub use dir::Dir;
pub use etcd::{Etcd, EtcdBuilder};
pub use failure::{Failure, Result};
pub use mariadb::{MariaDb, MariaDbBuilder};
pub use port::Port;
pub use postgres::{Pooler, Postgres, PostgresBuilder};
pub use process::{Ended, Process, Streams};
pub use proxy::{Flow, Proxy};
pub use redis::{Redis, RedisBuilder};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::{RedisSentinel, RedisSentinelBuilder};
pub use redlock::{Redlock, seen_long_ago};
pub use worker::Worker;
pub use zookeeper::{Ensemble, ZooKeeper, ZooKeeperBuilder};
