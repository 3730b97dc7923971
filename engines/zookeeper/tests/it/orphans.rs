//! Answers that are lost leave nothing behind while their client lives on.

use std::time::Duration;

use fencelock_core::Client;
use fencelock_testbed::{Flow, Proxy, ZooKeeper};
use tokio::time::sleep;

use crate::{connect, soon, until};

/// A client by way of a proxy, and one that sees what is there.
async fn far_and_near(server: &ZooKeeper) -> (Proxy, Client, Client) {
    let proxy = Proxy::start(server.port()).unwrap();
    let url = format!(
        "zookeeper://127.0.0.1:{}?response-timeout=300ms",
        proxy.port()
    );
    (proxy, connect(&url).await, connect(&server.url()).await)
}

/// Nobody stands at the name, although all clients and their sessions are there.
async fn nobody_stands_at(near: &Client, name: &str) {
    until("nobody holds or waits", async || {
        let view = near.look(name).await.unwrap();
        view.holders.is_empty() && view.waiters.is_empty()
    })
    .await;
}

/// Between any two answers: a node whose making was confirmed is known, also if nothing after that was answered.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_cut_at_any_moment_leave_no_node() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    for round in 0..150 {
        let taking = tokio::spawn({
            let far = far.clone();
            async move { far.lock("a").await }
        });
        sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
        proxy.reset();
        let guard = soon("the lock", taking).await.unwrap().unwrap();
        assert_eq!(
            near.look("a").await.unwrap().waiters.len(),
            0,
            "round {round}"
        );
        // It may not be answered; then it goes on behind.
        drop(guard.release().await);
    }
    nobody_stands_at(&near, "a").await;
}

/// Those who give up while nobody answers are not forgotten in line, however long that lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gave_up_in_silence_leaves_the_line() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    let guard = near.lock("a").await.unwrap();
    let waiting = tokio::spawn({
        let far = far.clone();
        async move { far.lock("a").ttl(Duration::from_secs(4)).await }
    });
    until("it stands in line", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    proxy.both(Flow::Hold);
    waiting.abort();
    // Beyond its ttl, for which it is withdrawn again and again; within its session, which lasts half as long again.
    sleep(Duration::from_millis(4800)).await;
    proxy.both(Flow::Pass);
    until("it has left", async || {
        near.look("a").await.unwrap().waiters.is_empty()
    })
    .await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
    soon("the client goes on", far.lock("a"))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    nobody_stands_at(&near, "a").await;
}
