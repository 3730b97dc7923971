//! Lost replies leave no nodes while their client is alive.

use std::time::Duration;

use fencelock_core::{Client, Error, Guard, Result};
use fencelock_testbed::{Flow, Proxy, ZooKeeper};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{connect, soon, until, wait_in_queue};

/// A client behind a proxy, and one without.
async fn far_and_near(server: &ZooKeeper) -> (Proxy, Client, Client) {
    let proxy = Proxy::start(server.port()).unwrap();
    // Sessions that outlast the silence in these tests.
    let options = "response-timeout=1500ms&claim-window=30s";
    let url = format!("zookeeper://127.0.0.1:{}?{options}", proxy.port());
    (proxy, connect(&url).await, connect(&server.url()).await)
}

/// The queue becomes empty, although all clients and their sessions are alive.
async fn queue_empties(near: &Client, name: &str) {
    until("no claim holds or waits", async || {
        let view = near.look(name).await.unwrap();
        view.holders.is_empty() && view.waiters.is_empty()
    })
    .await;
}

/// Connections are cut between any two replies. The client knows a node whose creation was confirmed, even if no later reply
/// came.
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
        // Without a reply the release is repeated in the background.
        drop(guard.release().await);
    }
    queue_empties(&near, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_answer_was_lost_keeps_its_place() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    let other = connect(&server.url()).await;
    // From now on the client knows that the lock's node exists, and creates only the claim's node.
    far.lock("a").await.unwrap().release().await.unwrap();
    let guard = near.lock("a").await.unwrap();
    let held = server.children("/a").unwrap();
    proxy.answers(Flow::Lose);
    let first = wait_unseen(&far, &near).await;
    let mut nodes = server.children("/a").unwrap();
    nodes.retain(|node| !held.contains(node));
    let second = wait_in_queue(&other, "a", false, 2).await;
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
        nodes.len() == 1 && now.contains(&nodes[0]),
        "{nodes:?} {now:?}"
    );
    first.release().await.unwrap();
    let second = soon("the second", second).await.unwrap();
    second.release().await.unwrap();
    queue_empties(&near, "a").await;
}

/// Waits over a connection whose replies are lost, until another client sees the waiter.
async fn wait_unseen(far: &Client, near: &Client) -> JoinHandle<Result<Guard>> {
    let waiting = tokio::spawn(far.lock("a").into_future());
    until("it waits", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gave_up_before_its_node_was_confirmed_leaves_none() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    // The session of the waiting claim lives as long as this hold.
    let stays = far.lock("stays").await.unwrap();
    far.lock("a").await.unwrap().release().await.unwrap();
    let guard = near.lock("a").await.unwrap();
    proxy.answers(Flow::Lose);
    let acquire = far.lock("a").timeout(Duration::from_secs(4));
    let waiting = tokio::spawn(acquire.into_future());
    until("it waits", async || {
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
    // The node was deleted by itself: its session is still alive.
    assert!(stays.is_valid() && guard.is_valid());
    stays.release().await.unwrap();
    guard.release().await.unwrap();
    queue_empties(&near, "a").await;
}

/// A waiter that gives up while the servers are silent leaves the queue, however long the silence lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gave_up_at_a_silent_server_leaves_the_queue() {
    let server = ZooKeeper::start().unwrap();
    let (proxy, far, near) = far_and_near(&server).await;
    let guard = near.lock("a").await.unwrap();
    let waiting = tokio::spawn({
        let far = far.clone();
        async move { far.lock("a").ttl(Duration::from_secs(4)).await }
    });
    until("it waits", async || {
        near.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    proxy.both(Flow::Hold);
    waiting.abort();
    // Longer than the claim's ttl, during which it is withdrawn repeatedly; shorter than its session, which lasts one and a
    // half times as long.
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
    queue_empties(&near, "a").await;
}
