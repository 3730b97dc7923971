//! What the list of cases for all engines does not know of: watches, sessions, ensembles.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ensemble;
mod looking;
mod orphans;
mod quiet;
mod restore;
mod sessions;
mod tls;
mod undone;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Client, Guard, StoreUrl};
use fencelock_zookeeper::ZooKeeper;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything takes, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Client {
    let engine = ZooKeeper::open(StoreUrl::parse(url).unwrap())
        .await
        .unwrap();
    Client::new(Arc::new(engine)).unwrap()
}

async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let ended = timeout(LIMIT, future).await;
    ended.unwrap_or_else(|_| panic!("waited {LIMIT:?} in vain for: {what}"))
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Packets that the server has had so far.
fn packets(server: &fencelock_testbed::ZooKeeper) -> u64 {
    let text = server.word("mntr").unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("zk_packets_received"));
    line.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Waits in a task of its own, and returns when it stands in line as one of so many.
async fn stand(client: &Client, name: &str, shared: bool, place: usize) -> JoinHandle<Guard> {
    let task = tokio::spawn({
        let (client, name) = (client.clone(), name.to_owned());
        async move {
            let wish = client.lock(&name);
            let wish = if shared { wish.shared() } else { wish };
            wish.await.unwrap()
        }
    });
    until("it stands in line", async || {
        client.look(name).await.unwrap().waiters.len() == place
    })
    .await;
    task
}
