//! What is specific to etcd: sessions, clusters that lose their leader, Go's layout, TLS, and the number of requests.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod cluster;
mod go_layout;
mod hand_off;
mod late;
mod options;
mod reap;
mod requests;
mod restore;
mod sessions;

use std::time::Duration;

use fencelock::engine::Standing;
use fencelock::{Client, Guard, Result, Token};
use fencelock_testbed::Etcd;
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

pub(crate) async fn client(etcd: &Etcd) -> Client {
    fencelock::connect(etcd.url()).await.unwrap()
}

/// A client that repeats no request because a busy machine is slow to answer.
pub(crate) async fn patient_client(etcd: &Etcd) -> Client {
    let url = format!("{}?response-timeout=20s", etcd.url());
    fencelock::connect(&url).await.unwrap()
}

pub(crate) fn token_of(standing: &Standing) -> Token {
    match standing {
        Standing::Held(grant) => grant.tokens.first,
        other => panic!("{other:?}"),
    }
}

/// Waits for the lock in a task.
pub(crate) fn wait_for(client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(&name).await })
}

/// Waits until `count` claims wait for the lock.
pub(crate) async fn waiters(client: &Client, name: &str, count: usize) {
    soon("all wait", all_wait(client, name, count)).await;
}

/// Like [`waiters`], but waits for ever.
pub(crate) async fn all_wait(client: &Client, name: &str, count: usize) {
    while client.look(name).await.unwrap().waiters.len() != count {
        sleep(Duration::from_millis(10)).await;
    }
}
