//! Data is restored from a backup: tokens repeat, and a fence refuses a client with a repeated token.

use fencelock::fence::{FenceError, Highest};
use fencelock_core::Client;
use fencelock_testbed::ZooKeeper;

use crate::connect;

/// Takes the lock, passes the fence, and releases.
async fn pass(client: &Client, name: &str, fence: &Highest) -> Result<(), FenceError> {
    let guard = client.lock(name).await.unwrap();
    let sequencer = guard.sequencer().await.unwrap();
    let passed = fence.write(&sequencer, || ());
    guard.release().await.unwrap();
    passed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_refuses_repeated_tokens_and_other_names_go_on() {
    let mut server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    let fence = Highest::in_memory();
    pass(&client, "a", &fence).await.unwrap();
    server.save().unwrap();
    for _ in 0..50 {
        pass(&client, "a", &fence).await.unwrap();
    }
    client.close().await.unwrap();
    server.restart_as_saved().unwrap();
    let client = connect(&server.url()).await;
    let kept_out = pass(&client, "a", &fence).await.unwrap_err();
    assert!(matches!(kept_out, FenceError::Stale(_)), "{kept_out:?}");
    pass(&client, "b", &fence).await.unwrap();
}
