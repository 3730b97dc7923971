//! Answers that are lost leave nothing behind while their client lives on.

use std::time::Duration;

use fencelock_core::{Client, Error, Guard, Result};
use fencelock_testbed::{Flow, Proxy, ZooKeeper};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{connect, soon, stand, until};

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

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_answer_was_lost_keeps_its_place() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    let other = connect(&server.url()).await;
    // The node of the name is known from here on: only the claim's own is asked for.
    far.lock("a").await.unwrap().release().await.unwrap();
    let guard = near.lock("a").await.unwrap();
    let held = server.children("/a").unwrap();
    proxy.answers(Flow::Lose);
    let first = stand_unseen(&far, &near).await;
    let mut line = server.children("/a").unwrap();
    line.retain(|node| !held.contains(node));
    let second = stand(&other, "a", false, 2).await;
    proxy.answers(Flow::Pass);
    proxy.reset();
    guard.release().await.unwrap();
    let first = soon("the first", first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    let view = near.look("a").await.unwrap();
    assert_eq!(view.holders[0].claim, Some(first.claim_id()));
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1));
    let now = server.children("/a").unwrap();
    assert!(
        line.len() == 1 && now.contains(&line[0]),
        "{line:?} {now:?}"
    );
    first.release().await.unwrap();
    let second = soon("the second", second).await.unwrap();
    second.release().await.unwrap();
    nobody_stands_at(&near, "a").await;
}

/// Waits over a connection whose answers are lost, and is seen by another client.
async fn stand_unseen(far: &Client, near: &Client) -> JoinHandle<Result<Guard>> {
    let waiting = tokio::spawn(far.lock("a").into_future());
    until("it stands in line", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_gave_up_before_its_node_was_confirmed_leaves_none() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    // Its session lives for as long as this hold.
    let stays = far.lock("stays").await.unwrap();
    far.lock("a").await.unwrap().release().await.unwrap();
    let guard = near.lock("a").await.unwrap();
    proxy.answers(Flow::Lose);
    let wish = far.lock("a").timeout(Duration::from_secs(1));
    let waiting = tokio::spawn(wish.into_future());
    until("it stands in line", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    let error = soon("an error", waiting).await.unwrap().unwrap_err();
    assert!(
        matches!(error, Error::Unavailable { .. } | Error::TimedOut { .. }),
        "{error:?}"
    );
    proxy.answers(Flow::Pass);
    proxy.reset();
    until("it has left", async || {
        near.look("a").await.unwrap().waiters.is_empty()
    })
    .await;
    // It did not go with its session.
    assert!(stays.is_valid() && guard.is_valid());
    stays.release().await.unwrap();
    guard.release().await.unwrap();
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
