//! A claim that knows without looking that it is alone, and its bad days.

use std::time::Duration;

use fencelock_core::{Client, Guard};
use fencelock_testbed::{Proxy, ZooKeeper};
use tokio::task::JoinHandle;

use crate::{connect, packets, soon};

/// Long enough for a turn that is not to be taken.
const WHILE: Duration = Duration::from_millis(300);

async fn pairs(client: &Client, count: usize) {
    for _ in 0..count {
        client.lock("a").await.unwrap().release().await.unwrap();
    }
}

/// Somebody else holds; the client is to wait, and to be served in the end.
async fn waits(client: &Client, held: Guard) {
    let waiting: JoinHandle<Guard> = tokio::spawn({
        let client = client.clone();
        async move { client.lock("a").await.unwrap() }
    });
    tokio::time::sleep(WHILE).await;
    assert!(!waiting.is_finished() && held.is_valid());
    held.release().await.unwrap();
    let guard = soon("a turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn alone_one_request_takes_and_one_releases() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    pairs(&client, 3).await;
    let before = packets(&server);
    pairs(&client, 100).await;
    let asked = packets(&server) - before;
    // And a sign of life now and then.
    assert!(
        (200..210).contains(&asked),
        "{asked} requests for 100 pairs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_between_is_seen() {
    let server = ZooKeeper::start().unwrap();
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    for others in 0..3 {
        pairs(&client, 3).await;
        pairs(&other, others).await;
        let held = other.lock("a").await.unwrap();
        waits(&client, held).await;
    }
}

/// The same number as would come next, at a node that is not the same: over the connection that was there, and over another.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_node_was_made_anew_is_looked_at() {
    for breaks in [false, true] {
        let server = ZooKeeper::start().unwrap();
        let proxy = Proxy::start(server.port()).unwrap();
        let url = format!("zookeeper://127.0.0.1:{}/locks", proxy.port());
        let (client, other) = (
            connect(&url).await,
            connect(&format!("{}/locks", server.url())).await,
        );
        pairs(&client, 3).await;
        server.erase_below("/locks", None).unwrap();
        if breaks {
            proxy.reset();
        }
        // Numbers 0 and 1, and 2 is held; 3 is what the client would have next.
        pairs(&other, 2).await;
        let held = other.lock("a").await.unwrap();
        let line = server.children("/locks/a").unwrap();
        assert!(
            line.len() == 1 && line[0].ends_with("0000000002"),
            "{line:?}"
        );
        waits(&client, held).await;
    }
}
