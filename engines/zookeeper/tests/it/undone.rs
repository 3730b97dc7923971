//! Servers that go back to what they knew before: what they had acknowledged is undone, and sessions live on.

use std::time::Duration;

use fencelock_testbed::ZooKeeper;

use crate::{connect, soon};

/// Longer than a test waits: nothing here ends by itself.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_undone_is_done_again() {
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
async fn a_hold_that_was_undone_is_lost_at_once() {
    let mut server = ZooKeeper::start().unwrap();
    let url = format!("{}?claim-window={}s", server.url(), LONG.as_secs());
    let client = connect(&url).await;
    let kept = client.lock("kept").ttl(LONG).await.unwrap();
    server.save().unwrap();
    let undone = client.lock("undone").ttl(LONG).await.unwrap();
    server.restart_as_saved().unwrap();
    // No renewal is due for a long time.
    soon("the loss", undone.lost()).await;
    assert!(kept.is_valid());
    kept.release().await.unwrap();
}
