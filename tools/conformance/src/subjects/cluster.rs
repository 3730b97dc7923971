//! A Redis Cluster of three masters. For cases with a server of their own, each master has a replica that confirms
//! every grant.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use fencelock_testbed::{Proxy, Redis, RedisCluster, Result};

use crate::pool::{Lease, Pool};
use crate::subject::{Passwords, Server, Store, Subject};
use crate::subjects::redis::response_timeout;

const WRONG: &str = "hunter2-wrong";
/// Longer than every case. Fail-overs have tests of their own.
const NODE_TIMEOUT: u32 = 60_000;

static POOL: Pool<RedisCluster> = Pool::new();

pub(crate) struct Cluster;

#[async_trait]
impl Subject for Cluster {
    fn name(&self) -> &'static str {
        "redis_cluster"
    }

    fn has_server(&self) -> bool {
        true
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        if !server {
            let start = || RedisCluster::start(3, 0, NODE_TIMEOUT, None);
            return Ok(Box::new(Shared(POOL.lease(start, erase)?)));
        }
        let cluster = RedisCluster::start(3, 1, NODE_TIMEOUT, Some("always"))?;
        let ports: Vec<u16> = cluster.nodes()[..3].iter().map(Redis::port).collect();
        Ok(Box::new(Own {
            proxy: Proxy::start_all(&ports)?,
            ports,
            cluster: Mutex::new(cluster),
        }))
    }
}

fn erase(cluster: &RedisCluster) -> Result<()> {
    for node in &cluster.nodes()[..3] {
        node.command::<()>(&["FLUSHALL"])?;
    }
    Ok(())
}

fn leftovers(cluster: &RedisCluster) -> Result<u64> {
    let mut left = 0;
    for node in &cluster.nodes()[..3] {
        let keys: Vec<String> = node.command(&["KEYS", "*"])?;
        // At most one key of each slot.
        let permanent =
            |key: &&String| key.starts_with("fencelock:counter:{") || *key == "fencelock:record";
        left += keys.iter().filter(|key| !permanent(key)).count() as u64;
    }
    Ok(left)
}

/// A cluster that cases use one after another.
struct Shared(Lease<RedisCluster>);

#[async_trait]
impl Store for Shared {
    fn url(&self) -> String {
        format!("{}?{}", self.0.url(), response_timeout(false))
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.0)
    }
}

/// A cluster for one case.
struct Own {
    cluster: Mutex<RedisCluster>,
    ports: Vec<u16>,
    proxy: Proxy,
}

impl Own {
    fn cluster(&self) -> MutexGuard<'_, RedisCluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for Own {
    fn url(&self) -> String {
        let url = self.cluster().url();
        format!("{url}?replicas=1&{}", response_timeout(true))
    }

    async fn leftovers(&self) -> Result<u64> {
        leftovers(&self.cluster())
    }

    fn server(&self) -> Option<&dyn Server> {
        Some(self)
    }
}

/// The server of the case is all nodes.
impl Server for Own {
    fn pause(&self) -> Result<()> {
        self.cluster().nodes().iter().try_for_each(Redis::pause)
    }

    fn resume(&self) -> Result<()> {
        self.cluster().nodes().iter().try_for_each(Redis::resume)
    }

    fn kill9(&self) {
        self.cluster().nodes().iter().for_each(Redis::kill9);
    }

    fn restart(&self) -> Result<()> {
        self.kill9();
        let mut cluster = self.cluster();
        cluster
            .nodes_mut()
            .iter_mut()
            .try_for_each(Redis::restart)?;
        cluster.await_ready()
    }

    fn restart_empty(&self) -> Result<()> {
        self.kill9();
        let mut cluster = self.cluster();
        let mut nodes = cluster.nodes_mut().iter_mut();
        nodes.try_for_each(Redis::restart_empty)?;
        cluster.await_ready()
    }

    fn erase(&self) -> Result<()> {
        erase(&self.cluster())
    }

    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    fn proxied_url(&self) -> String {
        let pairs = self.ports.iter().zip(self.proxy.ports());
        let map: Vec<String> = pairs
            .map(|(port, proxy)| format!("127.0.0.1:{port}=127.0.0.1:{proxy}"))
            .collect();
        // The first request goes through the proxy, too.
        let mut hosts = self.cluster().url();
        for (port, proxy) in self.ports.iter().zip(self.proxy.ports()) {
            hosts = hosts.replace(&format!(":{port}"), &format!(":{proxy}"));
        }
        let (map, timeout) = (map.join(","), response_timeout(true));
        format!("{hosts}?replicas=1&{timeout}&address-map={map}")
    }

    fn password_urls(&self) -> Option<Passwords> {
        let cluster = self.cluster();
        Some(Passwords {
            right: "testbed".to_owned(),
            right_url: cluster.url_with("testbed"),
            wrong: WRONG.to_owned(),
            wrong_url: cluster.url_with(WRONG),
        })
    }
}
