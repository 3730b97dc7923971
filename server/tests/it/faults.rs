//! A store that does not answer, and clients that disconnect meanwhile.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_composite::Routed;
use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::layers::{Fault, FaultHandle, Layer, Trouble};
use fencelock_core::{Engine, LockName, Memory};
use fencelock_server::Server;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{Client, ask, is_free, look, replica, until};

async fn faulty() -> (Server, FaultHandle) {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    (replica(Arc::new(fault)).await, handle)
}

#[tokio::test]
async fn no_answer_is_unavailable_and_says_when_to_ask_again() {
    let ((at, handle), client) = (faulty().await, Client::new());
    let id = client.claim();
    handle.next([Trouble::LoseReply]);
    let unknown = client.put(&at, id, json!({"name": "a"})).await;
    unknown.is_problem(503, "unavailable");
    assert_eq!(unknown.header("retry-after"), Some("1"));
    // The request took effect. The next request finds that.
    let token = client.take(&at, id, "a").await;
    handle.next([Trouble::LoseReply]);
    client
        .renew(&at, id, "a", token)
        .await
        .is_problem(503, "unavailable");
    client.renew(&at, id, "a", token).await.is(200);
    handle.next([Trouble::LoseRequest, Trouble::LoseReply]);
    client
        .release(&at, id, "a")
        .await
        .is_problem(503, "unavailable");
    assert!(!is_free(&look(&at, "a").await));
    client
        .release(&at, id, "a")
        .await
        .is_problem(503, "unavailable");
    assert!(is_free(&look(&at, "a").await));
    assert_eq!(
        client.release(&at, id, "a").await.is(200)["released"],
        "already-expired"
    );
}

#[tokio::test]
async fn renewals_that_have_no_answer_are_unknown() {
    let ((at, handle), client) = (faulty().await, Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    handle.next([Trouble::LoseRequest]);
    let body = json!({"claims": [{"claim": id, "name": "a", "token": token}]});
    let renewed = client.ask(&at, "POST", "/v1/renewals", &body).await.is(200);
    let claim = &renewed["claims"][0];
    assert_eq!(
        (&claim["state"], &claim["claim"]),
        (&json!("unknown"), &json!(id.to_string()))
    );
    assert!(!claim["detail"].as_str().unwrap().is_empty());
}

/// A replica on a set of two stores, and a name on each. The second store has faults.
async fn set() -> (Server, FaultHandle, [String; 2]) {
    let (one, other) = (Memory::new(), Memory::new());
    let (fault, handle) = Fault::new(Arc::new(other));
    let shards: [(&str, Arc<dyn Engine>); 2] = [("a", Arc::new(one)), ("b", Arc::new(fault))];
    Routed::shards(shards.clone()).init().await.unwrap();
    let set = Routed::shards(shards).open().await.unwrap();
    let names = ["a", "b"].map(|id| {
        let mut names = (0..).map(|number| format!("job-{number}"));
        let on = |name: &String| set.shard_of(&LockName::new(name).unwrap()) == id;
        names.find(on).unwrap()
    });
    (replica(Arc::new(set)).await, handle, names)
}

#[tokio::test]
async fn a_part_of_the_store_that_is_silent_holds_up_no_renewal_of_another() {
    let ((at, handle, names), client) = (set().await, Client::new());
    let ids = [client.claim(), client.claim()];
    let tokens = [
        client.hold(&at, ids[0], &names[0]).await,
        client.hold(&at, ids[1], &names[1]).await,
    ];
    // In single requests.
    handle.next([Trouble::Hold]);
    let silent = client.renew(&at, ids[1], &names[1], tokens[1]);
    let others = async {
        for _ in 0..20 {
            let renewed = client.renew(&at, ids[0], &names[0], tokens[0]).await;
            renewed.is(200);
        }
        handle.open(1);
    };
    let (renewed, ()) = tokio::join!(silent, others);
    renewed.is(200);
    // Both in one request.
    handle.next([Trouble::Hold]);
    let claims = [1, 0].map(
        |at| json!({"claim": ids[at], "name": names[at], "token": tokens[at], "ttl_ms": 9000}),
    );
    let body = json!({ "claims": claims });
    for _ in 0..2 {
        let begun = tokio::time::Instant::now();
        let renewed = client.ask(&at, "POST", "/v1/renewals", &body).await.is(200);
        // Within a third of the ttl: a client waits that long. The answer comes after half of that time.
        assert!(begun.elapsed() < Duration::from_secs(3));
        let claims = &renewed["claims"];
        assert_eq!(claims[0]["state"], "unknown", "{renewed}");
        assert_eq!(claims[0]["claim"], ids[1].to_string());
        assert_eq!(claims[1]["state"], "held", "{renewed}");
    }
    handle.open(1);
    client
        .renew(&at, ids[1], &names[1], tokens[1])
        .await
        .is(200);
}

#[tokio::test]
async fn a_call_goes_on_when_its_client_is_gone_and_the_next_one_waits_for_it() {
    let ((at, handle), client) = (faulty().await, Client::new());
    let id = client.claim();
    handle.next([Trouble::Hold]);
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    let path = format!("/v1/claims/{id}");
    stream
        .write_all(&client.bytes("PUT", &path, &json!({"name": "a"})))
        .await
        .unwrap();
    while at.service().claims() == 0 {
        tokio::task::yield_now().await;
    }
    drop(stream);
    while at.connections() > 0 {
        tokio::task::yield_now().await;
    }
    // The release must come after the delayed take.
    let release = client.release(&at, id, "a");
    let open = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        handle.open(1);
    };
    let (released, ()) = tokio::join!(release, open);
    assert_eq!(released.is(200)["released"], "released");
    assert!(is_free(&look(&at, "a").await));
}

#[tokio::test]
async fn a_take_that_is_late_at_the_store_leaves_one_window_at_most() {
    let ((at, handle), client) = (faulty().await, Client::new());
    let id = client.claim();
    handle.next([Trouble::ArriveAfterError(Duration::from_millis(300))]);
    let body = json!({"name": "a", "ttl_ms": 3_600_000});
    client
        .put(&at, id, body)
        .await
        .is_problem(503, "unavailable");
    client.release(&at, id, "a").await.is(200);
    until(&at, "a", "taken by the late request", |lock| !is_free(lock)).await;
    until(&at, "a", "free", is_free).await;
}

#[tokio::test]
async fn a_store_that_stays_away_makes_the_replica_unready_but_not_dead() {
    let ((at, handle), client) = (faulty().await, Client::new());
    handle.by_chance(|_| Trouble::LoseRequest);
    let begun = tokio::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(5200) {
        client
            .put(&at, client.claim(), json!({"name": "a"}))
            .await
            .is_problem(503, "unavailable");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ask(&at, "GET", "/readyz", "")
        .await
        .is_problem(503, "unavailable");
    ask(&at, "GET", "/healthz", "").await.is(200);
    handle.by_chance(|_| Trouble::None);
    client.take(&at, client.claim(), "a").await;
    ask(&at, "GET", "/readyz", "").await.is(200);
}

/// A store with a bug: its first renewal panics.
#[derive(Debug)]
struct Panics {
    store: Memory,
    armed: AtomicBool,
}

#[async_trait]
impl Layer for Panics {
    fn below(&self) -> &dyn Engine {
        &self.store
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        assert!(!self.armed.swap(false, SeqCst), "as a test");
        self.store.renew(held).await
    }
}

impl fmt::Display for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[tokio::test]
async fn a_panic_of_a_renewal_ends_no_later_ones() {
    let (store, armed) = (Memory::new(), AtomicBool::new(true));
    let (at, client) = (
        replica(Arc::new(Panics { store, armed })).await,
        Client::new(),
    );
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    let failed = client.renew(&at, id, "a", token).await;
    assert!(failed.status >= 500, "{failed:?}");
    client.renew(&at, id, "a", token).await.is(200);
    client.release(&at, id, "a").await.is(200);
}
