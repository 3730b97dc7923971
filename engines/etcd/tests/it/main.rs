//! What is particular to etcd: sessions, clusters whose leader goes away, Go's layout, TLS, and how much is asked of the
//! servers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod access;
mod cluster;
mod foreign;
mod line;
mod restore;
mod sessions;
mod turns;

use std::time::Duration;

use fencelock::{Client, Guard, Result};
use fencelock_testbed::Etcd;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes, on a busy machine too.
pub(crate) const LIMIT: Duration = Duration::from_secs(25);

pub(crate) async fn soon<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match timeout(LIMIT, future).await {
        Ok(result) => result,
        Err(_) => panic!("waited in vain for: {what}"),
    }
}

pub(crate) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !so().await {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) async fn client(etcd: &Etcd) -> Client {
    fencelock::connect(&etcd.url()).await.unwrap()
}

pub(crate) fn wait_for(client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
    let (client, name) = (client.clone(), name.to_owned());
    tokio::spawn(async move { client.lock(&name).await })
}

pub(crate) async fn waiters(client: &Client, name: &str, count: usize) {
    until("all stand in line", async || {
        client.look(name).await.unwrap().waiters.len() == count
    })
    .await;
}
