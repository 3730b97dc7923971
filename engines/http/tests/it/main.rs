//! Tests specific to the lock service: replicas that end, hang, or come back with another store; tokens and TLS.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod batches;
mod bound;
mod connections;
mod events;
mod hung;
mod lines;
mod renewals;
mod replicas;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use fencelock::engine::Engine;
use fencelock::{Client, Guard, Result};
use fencelock_server::{Config, Server, Service};
use fencelock_testbed::Proxy;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes, even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match timeout(LIMIT, future).await {
        Ok(result) => result,
        Err(_) => panic!("timed out: {what}"),
    }
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// A replica with a proxy in front of it.
pub(crate) struct Replica {
    /// `None` once it was killed.
    pub(crate) server: Option<Server>,
    pub(crate) proxy: Proxy,
}

impl Replica {
    pub(crate) async fn start(engine: Arc<dyn Engine>) -> Self {
        let server = serve(engine, 0).await;
        Self {
            proxy: Proxy::start(server.address().port()).unwrap(),
            server: Some(server),
        }
    }

    /// Ends it like kill -9.
    pub(crate) fn kill(&mut self) {
        self.server = None;
    }
}

/// Starts a replica on a port, as soon as the port is free.
pub(crate) async fn serve(engine: Arc<dyn Engine>, port: u16) -> Server {
    serve_as(engine, Config::trusting(), port).await
}

/// Like [`serve`], with a configuration.
pub(crate) async fn serve_as(engine: Arc<dyn Engine>, config: Config, port: u16) -> Server {
    let start = async || {
        let service = Service::new(Arc::clone(&engine), config.clone()).unwrap();
        Server::start(([127, 0, 0, 1], port).into(), service).await
    };
    let mut server = start().await;
    until("the port is free", async || {
        if server.is_err() {
            server = start().await;
        }
        server.is_ok()
    })
    .await;
    server.unwrap()
}

pub(crate) fn url(replicas: &[Replica]) -> String {
    let hosts = replicas
        .iter()
        .map(|replica| format!("127.0.0.1:{}", replica.proxy.port()));
    format!("fencelock+http://{}", hosts.collect::<Vec<_>>().join(","))
}

pub(crate) async fn connect(url: &str) -> Client {
    soon("opening the store", fencelock::connect(url))
        .await
        .unwrap()
}

/// A client of two replicas whose first claim goes to the first one. Which one that is depends on the first ten bytes of its
/// ids, which are drawn.
pub(crate) async fn at_first(url: &str) -> Arc<dyn Engine> {
    loop {
        let opened = soon("opening the store", fencelock::open_engine(url)).await;
        let engine = opened.unwrap();
        let drawn = engine.claim_ids().unwrap();
        if drawn[9] % 2 == 0 {
            return engine;
        }
    }
}

pub(crate) fn wait_for(client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(&name).await })
}
