//! Takes and releases that are sent to a replica together.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use fencelock::engine::Engine;
use fencelock::{Client, Error, LockName, Memory, Release};
use fencelock_composite::Routed;
use fencelock_core::layers::{Fault, Trouble};
use fencelock_server::{Config, Server, Service};
use fencelock_testbed::Flow;
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::{Replica, connect, serve, soon, until, url};

fn at(server: &Server) -> String {
    format!("fencelock+http://{}", server.address())
}

/// The number of requests of a route that a replica has served.
pub(crate) async fn served(server: &Server, route: &str) -> u64 {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let of_route = format!("route=\"{route}\"");
    let lines = text.lines().filter(|line| {
        line.starts_with("fencelock_http_requests_total{") && line.contains(&of_route)
    });
    let counts = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
    counts.sum()
}

/// Takes and releases these names at once, each `rounds` times.
pub(crate) async fn pairs(client: &Client, names: impl IntoIterator<Item = String>, rounds: usize) {
    let mut tasks = JoinSet::new();
    for name in names {
        let client = client.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = client.lock(&name).await.unwrap();
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
        });
    }
    soon("all pairs", tasks.join_all()).await;
}

pub(crate) fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("lock/{number}"))
}

#[tokio::test]
async fn requests_that_start_together_go_together_and_one_goes_alone() {
    let memory = Memory::new();
    let server = serve(Arc::new(memory.another()), 0).await;
    let client = connect(&at(&server)).await;
    pairs(&client, names(1), 20).await;
    assert_eq!(served(&server, "/v1/batch").await, 0);
    assert_eq!(served(&server, "/v1/claims/{id}").await, 20);
    pairs(&client, names(64), 20).await;
    let (together, alone) = (
        served(&server, "/v1/batch").await,
        served(&server, "/v1/claims/{id}").await + served(&server, "/v1/claims/{id}/release").await,
    );
    // There were 2,560 requests.
    assert!((1..640).contains(&together), "{together} batches");
    assert!(alone < 640, "{alone} requests alone");
    assert!(memory.is_empty());
}

/// A replica of another version without batches, at an address whose other replica announces batches.
async fn without_batches(engine: Arc<dyn Engine>) -> String {
    let service = Service::new(engine, Config::trusting()).unwrap();
    let gone = any(async || StatusCode::NOT_FOUND);
    let router = Router::new().route("/v1/batch", gone);
    let router = router.fallback_service(service.router());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(listener, router).into_future());
    format!("fencelock+http://{address}")
}

#[tokio::test]
async fn a_replica_that_knows_no_batches_gets_single_requests() {
    let memory = Memory::new();
    let url = without_batches(Arc::new(memory.another())).await;
    let client = connect(&url).await;
    pairs(&client, names(32), 5).await;
    assert!(memory.is_empty());
}

#[tokio::test]
async fn a_lock_without_an_answer_delays_no_other() {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let shards: [(&str, Arc<dyn Engine>); 2] =
        [("a", Arc::new(Memory::new())), ("b", Arc::new(fault))];
    Routed::shards(shards.clone()).init().await.unwrap();
    let set = Routed::shards(shards).open().await.unwrap();
    let on = |id: &str| {
        let fits = |name: &String| set.shard_of(&LockName::new(name).unwrap()) == id;
        names(1000).filter(fits).take(16).collect::<Vec<_>>()
    };
    let (good, silent) = (on("a"), on("b"));
    let server = serve(Arc::new(set), 0).await;
    let client = connect(&format!("{}?response-timeout=20s", at(&server))).await;
    handle.next(silent.iter().map(|_| Trouble::Hold));
    let mut held_up = JoinSet::new();
    for name in silent {
        let client = client.clone();
        held_up.spawn(async move { client.lock(&name).await.unwrap().release().await.unwrap() });
    }
    for name in &good {
        // These requests are sent with the others, and answered before them.
        let guard = soon("a lock of the other store", client.lock(name)).await;
        guard.unwrap().release().await.unwrap();
    }
    pairs(&client, good, 10).await;
    assert!(held_up.try_join_next().is_none());
    handle.open(16);
    let released = soon("the others", held_up.join_all()).await;
    assert!(
        released
            .iter()
            .all(|released| *released == Release::Released)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_an_answer_leaves_no_lock_behind() {
    let memory = Memory::new();
    let replica = Replica::start(Arc::new(memory.another())).await;
    let url = format!(
        "{}?response-timeout=500ms",
        url(std::slice::from_ref(&replica))
    );
    let client = connect(&url).await;
    // The batch reaches the replica, but the answer does not come back.
    replica.proxy.answers(Flow::Hold);
    let mut tasks = JoinSet::new();
    for name in names(20) {
        let client = client.clone();
        tasks.spawn(async move { client.try_lock(&name).await });
    }
    for lost in soon("errors", tasks.join_all()).await {
        assert!(matches!(lost, Err(Error::Unavailable { .. })), "{lost:?}");
    }
    let server = replica.server.as_ref().unwrap();
    assert!(served(server, "/v1/batch").await > 0);
    replica.proxy.both(Flow::Pass);
    // The locks that were granted are released, without waiting for their leases to end.
    until("all are free", async || memory.is_empty()).await;
    pairs(&client, names(20), 2).await;
}

/// A program keeps two requests in a `select!` and awaits a third one in an arm.
#[tokio::test]
async fn futures_that_nobody_polls_hold_up_no_other_request() {
    let server = serve(Arc::new(Memory::new()), 0).await;
    let client = connect(&at(&server)).await;
    let held = client.lock("held").await.unwrap();
    let mut begun: Vec<_> = ["a", "b"]
        .map(|name| client.lock(name).into_future())
        .into();
    for request in &mut begun {
        // Their requests are on the way, and their answers are not read.
        assert!(request.now_or_never().is_none());
    }
    let guard = soon("a third request", client.lock("c").into_future()).await;
    soon("its release", guard.unwrap().release()).await.unwrap();
    soon("another release", held.release()).await.unwrap();
    for request in begun {
        drop(soon("the others", request).await.unwrap());
    }
}
