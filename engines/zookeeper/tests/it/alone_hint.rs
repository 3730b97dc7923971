//! The alone hint: a claim that knows without reading the queue that it is alone, and cases in which it must not rely on that.

use std::time::Duration;

use fencelock_core::{Client, Guard};
use fencelock_testbed::{Proxy, ZooKeeper};
use tokio::task::JoinHandle;

use crate::{connect, packets, soon};

/// Long enough for a claim to take a lock wrongly.
const WHILE: Duration = Duration::from_millis(300);

async fn pairs(client: &Client, count: usize) {
    for _ in 0..count {
        client.lock("a").await.unwrap().release().await.unwrap();
    }
}

/// Another client holds: this client must wait, and gets the lock in the end.
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
async fn an_uncontended_lock_takes_one_request_and_its_release_another() {
    let server = ZooKeeper::start().unwrap();
    let client = connect(&server.url()).await;
    pairs(&client, 3).await;
    let before = packets(&server);
    pairs(&client, 100).await;
    let asked = packets(&server) - before;
    // Plus heartbeats, of which a slow machine sends more. A third request for each pair would make it 300.
    assert!(
        (200..250).contains(&asked),
        "{asked} requests for 100 pairs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_between_is_seen() {
    let server = ZooKeeper::start().unwrap();
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    for others in 0..3 {
        pairs(&client, 3).await;
        pairs(&other, others).await;
        let held = other.lock("a").await.unwrap();
        waits(&client, held).await;
    }
}

/// The lock's node is created again, and its numbers start from 0: the next claim gets the number that it expects. Tried over
/// the old connection, and over a new one.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_a_new_lock_node_is_read() {
    for breaks in [false, true] {
        // The server must not delete the lock's node again between two pairs.
        let rarely = ZooKeeper::builder().flag("-Dznode.container.checkIntervalMs=60000");
        let server = rarely.start().unwrap();
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
        // Numbers 0 and 1 are gone, and 2 is held. The client expects 3.
        pairs(&other, 2).await;
        let held = other.lock("a").await.unwrap();
        let nodes = server.children("/locks/a").unwrap();
        assert!(
            nodes.len() == 1 && nodes[0].ends_with("0000000002"),
            "{nodes:?}"
        );
        waits(&client, held).await;
    }
}
