//! Servers that roll back acknowledged changes, while sessions stay alive.

use std::time::Duration;

use fencelock_core::LossReason;
use fencelock_testbed::ZooKeeper;

use crate::{connect, soon, until};

/// Longer than a test waits: no session or hold expires.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_rolled_back_is_repeated() {
    let mut server = ZooKeeper::start().unwrap();
    let url = format!("{}?claim-window={}s", server.url(), LONG.as_secs());
    let client = connect(&url).await;
    let guard = client.lock("a").await.unwrap();
    server.save().unwrap();
    guard.release().await.unwrap();
    server.restart_as_saved().unwrap();
    let other = connect(&server.url()).await;
    let guard = soon("the lock", other.lock("a")).await.unwrap();
    guard.release().await.unwrap();
    drop(client);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_rolled_back_is_lost_at_once() {
    let mut server = ZooKeeper::start().unwrap();
    let url = format!("{}?claim-window={}s", server.url(), LONG.as_secs());
    let client = connect(&url).await;
    let kept = client.lock("kept").ttl(LONG).await.unwrap();
    server.save().unwrap();
    let rolled_back = client.lock("rolled-back").ttl(LONG).await.unwrap();
    server.restart_as_saved().unwrap();
    // No renewal is due for a long time.
    let why = soon("the loss", rolled_back.lost()).await;
    assert_eq!(why, LossReason::StoreForgot);
    assert!(kept.is_valid());
    kept.release().await.unwrap();
}

/// The servers have lost the session and all its nodes.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_session_was_rolled_back_is_lost() {
    let mut server = ZooKeeper::start().unwrap();
    server.save().unwrap();
    let url = format!("{}?claim-window={}s", server.url(), LONG.as_secs());
    let client = connect(&url).await;
    let guard = client.lock("a").ttl(LONG).await.unwrap();
    server.restart_as_saved().unwrap();
    let why = soon("the loss", guard.lost()).await;
    assert_eq!(why, LossReason::SessionEnded);
    drop(client.lock("a").await.unwrap());
}

/// A follower has a node that no other server has. No client can delete it, because the leader does not have it.
#[tokio::test(flavor = "multi_thread")]
async fn a_ghost_on_one_server_does_not_block_its_clients() {
    let mut ensemble = ZooKeeper::builder().ensemble().unwrap();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let url = ensemble.server(leader).url();
    // Made permanent, so that it stays when it is not used.
    ensemble.server(leader).make_root("/a", None).unwrap();
    let holder = connect(&format!("{url}?claim-window={}s", LONG.as_secs())).await;
    let guard = holder.lock("a").await.unwrap();
    until("the follower knows of it", async || {
        let server = ensemble.server(follower);
        server.children("/a").is_ok_and(|below| below.len() == 1)
    })
    .await;
    ensemble.server(follower).save().unwrap();
    guard.release().await.unwrap();
    for _ in 0..20 {
        holder.lock("b").await.unwrap().release().await.unwrap();
    }
    ensemble.server_mut(follower).restart_astray().unwrap();
    let client = connect(&ensemble.server(follower).url()).await;
    let seen = client.look("a").await.unwrap();
    assert_eq!(seen.holders.len(), 1, "its server must have the ghost");
    assert_eq!(holder.look("a").await.unwrap().holders.len(), 0);
    let guard = soon("the lock", client.lock("a")).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(client.look("a").await.unwrap().holders.len(), 0);
}
