//! Tests specific to ZooKeeper, in addition to those of all engines: watches, sessions, ensembles.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod alone_hint;
mod ensemble;
mod inspect;
mod options;
mod orphans;
mod reap;
mod restore;
mod rollback_repair;
mod sessions;
mod tls;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Client, Guard, StoreUrl};
use fencelock_zookeeper::ZooKeeper;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Opening makes one attempt, and the servers may just be choosing a leader.
async fn connect(url: &str) -> Client {
    let opened = async {
        loop {
            match ZooKeeper::open(StoreUrl::parse(url).unwrap()).await {
                Err(error) if error.is_away() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => return opened.unwrap(),
            }
        }
    };
    Client::new(Arc::new(soon("opening", opened).await)).unwrap()
}

async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    let ended = timeout(LIMIT, future).await;
    ended.unwrap_or_else(|_| panic!("timed out after {LIMIT:?}: {what}"))
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// Waits for a renewal. A loss fails the test.
async fn renewed(guard: &Guard) {
    tokio::select! {
        why = guard.lost() => panic!("lost: {why}"),
        _ = soon("a renewal", guard.prolonged()) => {}
    }
}

/// How many packets the server has received.
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

/// Waits for a lock in a task. Returns when the lock has `waiters` waiters.
async fn wait_in_queue(
    client: &Client,
    name: &str,
    shared: bool,
    waiters: usize,
) -> JoinHandle<Guard> {
    let task = tokio::spawn({
        let (client, name) = (client.clone(), name.to_owned());
        async move {
            let acquire = client.lock(&name);
            let acquire = if shared { acquire.shared() } else { acquire };
            acquire.await.unwrap()
        }
    });
    until("it waits", async || {
        client.look(name).await.unwrap().waiters.len() == waiters
    })
    .await;
    task
}
