//! Real servers for tests, on free loopback ports, in temporary directories. They can be stopped, killed and restarted.
//! They end when their handle is dropped, or when the test process ends in any way. There are also a TCP proxy that
//! delays, holds, loses and cuts connections, and worker processes that can be stopped and killed.
//!
//! Every call blocks for milliseconds at most, unless its description says otherwise, and needs no async runtime.

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
