//! Five servers behind proxies, and stores that use them.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Grant, Standing};
use fencelock_core::{Engine, LockName, Result, StoreUrl};
use fencelock_redis::Redlock;
use fencelock_testbed::{Proxy, Redis, RedisBuilder, seen_long_ago};

use crate::support::{ms, until};

/// The hash that a node keeps.
pub(crate) const MEMORY: &str = "fencelock:redlock";
/// Short, but far above the node-timeout.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(4);
/// How long a restarted node does not vote.
pub(crate) const DELAY: Duration = Duration::from_secs(6);
pub(crate) const ALL: [usize; 5] = [0, 1, 2, 3, 4];

pub(crate) type Store = crate::support::Store<Redlock>;

/// Five servers, each behind a proxy.
pub(crate) struct Nodes {
    pub(crate) servers: Vec<Redis>,
    pub(crate) proxies: Vec<Proxy>,
}

impl Nodes {
    /// Five nodes that vote.
    pub(crate) fn start() -> Self {
        let nodes = Self::start_fresh(Redis::builder);
        for server in &nodes.servers {
            age(server);
        }
        nodes
    }

    pub(crate) fn start_fresh(builder: impl Fn() -> RedisBuilder) -> Self {
        let servers: Vec<Redis> = (0..5).map(|_| builder().start().unwrap()).collect();
        let proxies = servers.iter().map(|server| Proxy::start(server.port()));
        let proxies = proxies.map(|proxy| proxy.unwrap()).collect();
        Self { servers, proxies }
    }

    pub(crate) fn url(&self) -> String {
        url(self.servers.iter().map(Redis::port), "")
    }

    pub(crate) fn proxied_url(&self) -> String {
        url(self.proxies.iter().map(Proxy::port), "")
    }

    pub(crate) async fn open(&self) -> Store {
        open(&self.url()).await.unwrap()
    }

    pub(crate) async fn proxied(&self) -> Store {
        open(&self.proxied_url()).await.unwrap()
    }

    /// The value at each node.
    pub(crate) fn values(&self, name: &str) -> Vec<Option<String>> {
        let servers = self.servers.iter();
        servers
            .map(|server| server.command(&["GET", name]).unwrap())
            .collect()
    }

    /// Waits until `count` nodes have the lock.
    pub(crate) async fn await_held(&self, name: &str, count: usize) {
        let held = || self.values(name).iter().flatten().count() == count;
        until("the nodes have the lock", held).await;
    }

    /// Cuts these nodes off from the clients of the proxies.
    pub(crate) fn cut_off(&self, nodes: &[usize]) {
        for node in nodes {
            self.proxies[*node].refuse(true).unwrap();
            self.proxies[*node].reset();
        }
    }

    pub(crate) async fn await_free(&self, name: &str, nodes: &[usize]) {
        let free = |node: &usize| -> bool {
            let exists: u64 = self.servers[*node].command(&["EXISTS", name]).unwrap();
            exists == 0
        };
        until("the nodes are free", || nodes.iter().all(free)).await;
    }
}

pub(crate) fn url(ports: impl IntoIterator<Item = u16>, options: &str) -> String {
    let hosts = ports.into_iter().map(|port| format!("127.0.0.1:{port}"));
    let hosts = hosts.collect::<Vec<_>>().join(",");
    format!("redlock://{hosts}?node-timeout=300ms&max-ttl=4s{options}")
}

pub(crate) fn age(server: &Redis) {
    seen_long_ago(server, 0).unwrap();
}

pub(crate) async fn open(url: &str) -> Result<Store> {
    Ok(Store::new(Redlock::connect(StoreUrl::parse(url)?).await?))
}

impl crate::support::Store<Redlock> {
    /// A claim that does not wait, for [`MAX_TTL`].
    pub(crate) fn claim(&self, name: &str) -> Claim {
        Claim::new(self.ids.next(), "tester", LockName::new(name).unwrap())
            .ttl(MAX_TTL)
            .wait(false)
    }

    pub(crate) async fn take(&self, name: &str) -> (Claim, Grant) {
        let claim = self.claim(name);
        let begin = Instant::now();
        loop {
            match self.engine.place(&claim).await {
                Ok(Standing::Held(grant)) => return (claim, grant),
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => panic!("{name}: {error}"),
            }
            assert!(
                begin.elapsed() < Duration::from_secs(15),
                "{name} is not granted"
            );
            tokio::time::sleep(ms(5)).await;
        }
    }

    /// Whether another claim holds the lock, according to the answers of enough nodes.
    pub(crate) async fn is_busy(&self, name: &str) -> bool {
        let claim = self.claim(name);
        match self.engine.place(&claim).await {
            Ok(Standing::Busy) => true,
            Ok(Standing::Held(_)) => {
                self.release(&claim).await;
                false
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}
