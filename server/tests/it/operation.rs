//! What an operator relies on: health, pauses, the listener for operators, proxies, and room for clients that hold.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use fencelock_core::layers::{Fault, Meter, Trouble};
use fencelock_core::{Engine, Evict, LockName, Memory};
use fencelock_server::{AuditLog, Config, Server, Service};
use fencelock_testbed::Dir;
use futures_util::StreamExt;
use http::Request;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_service::Service as _;

use crate::client::{Client, LongPolls, answer, ask, one, raw, replica, replica_with, request};

/// The status, before the event loop can run again.
async fn health_at_once(at: &Server) -> u16 {
    let request = Request::get("/healthz").header("Host", "localhost");
    let mut router = at.service().router();
    let answered = router.call(request.body(Body::empty()).unwrap()).await;
    answered.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_blocked_event_loop_is_unhealthy() {
    let at = one().await;
    ask(&at, "GET", "/healthz", "").await.is(200);
    // This thread runs the event loop.
    std::thread::sleep(Duration::from_millis(2300));
    assert_eq!(health_at_once(&at).await, 503);
    let well = async {
        while health_at_once(&at).await != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let well = tokio::time::timeout(Duration::from_secs(10), well).await;
    well.expect("it does not recover");
}

/// A program serves the routes by itself. The replica passes on the store's events there, too.
#[tokio::test]
async fn a_router_without_the_server_hears_the_store() {
    let store = Arc::new(Memory::new());
    let service = Service::new(store.clone(), Config::default()).unwrap();
    let client = Client::new();
    let mut router = service.router();
    let mut ask = async |method: &str, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path);
        let request = request
            .header("Host", "localhost")
            .header("Fencelock-Key", client.key.secret())
            .header("Content-Type", "application/json");
        let answered = router.call(request.body(Body::from(body)).unwrap()).await;
        answered.unwrap()
    };
    let id = client.claim();
    let body = serde_json::json!({"name": "a"}).to_string();
    let taken = ask("PUT", &format!("/v1/claims/{id}"), body).await;
    assert_eq!(taken.status(), 200);
    let listening = ask("GET", "/v1/events", String::new()).await;
    assert_eq!(listening.status(), 200);
    let mut events = listening.into_body().into_data_stream();
    let name = LockName::new("a").unwrap();
    let view = store.inspect().look(&name).await.unwrap();
    let token = view.token().unwrap();
    let evicted = store.inspect().evict(&name, token, Evict::Release).await;
    assert!(evicted.unwrap());
    let lost = async {
        let mut all = String::new();
        while !all.contains("event: lost") {
            let part = events.next().await.expect("the events end").unwrap();
            all.push_str(str::from_utf8(&part).unwrap());
        }
    };
    let lost = tokio::time::timeout(Duration::from_secs(20), lost).await;
    lost.expect("the event does not come");
}

#[tokio::test]
async fn requests_read_before_a_pause_do_not_reach_the_store() {
    let meter = Arc::new(Meter::new(Arc::new(Memory::new())));
    let (fault, handle) = Fault::new(Arc::clone(&meter) as _);
    let (at, client) = (replica(Arc::new(fault)).await, Client::new());
    let id = client.claim();
    let token = client.hold(&at, id, "a").await;
    let renewed = meter.counts().renewed;
    // The first renewal is held up before the store, and the second one waits for its turn.
    handle.next([Trouble::Hold]);
    let path = format!("/v1/claims/{id}/renew");
    let renew = client.bytes(
        "POST",
        &path,
        &serde_json::json!({"name": "a", "token": token}),
    );
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        stream.write_all(&renew).await.unwrap();
        streams.push(stream);
        // The server reads it meanwhile.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    std::thread::sleep(Duration::from_millis(1500));
    handle.open(1);
    answer(&mut streams[0]).await.is(200);
    answer(&mut streams[1]).await.is_problem(503, "unavailable");
    assert_eq!(meter.counts().renewed, renewed + 1);
    // Later requests are served.
    client.renew(&at, id, "a", token).await.is(200);
}

#[tokio::test]
async fn operators_have_a_listener_of_their_own() {
    let mut config = Config::trusting();
    config.admin = Some("127.0.0.1:0".parse().unwrap());
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let admin = Server::start_admin("127.0.0.1:0".parse().unwrap(), at.service().clone());
    let admin = admin.await.unwrap();
    for path in ["/metrics", "/healthz", "/readyz"] {
        ask(&at, "GET", path, "").await.is_problem(404, "not-found");
        assert_eq!(ask(&admin, "GET", path, "").await.status, 200);
    }
    ask(&admin, "GET", "/v1/store", "")
        .await
        .is_problem(404, "not-found");
}

#[tokio::test]
async fn the_audit_log_believes_configured_proxies_alone() {
    let dir = Dir::new("audit").unwrap();
    let file = dir.path().join("audit");
    for (proxies, peers) in [
        (
            vec!["127.0.0.1", "10.0.0.9"],
            vec!["192.0.2.7", "192.0.2.8", "127.0.0.1:"],
        ),
        (vec![], vec!["127.0.0.1:", "127.0.0.1:", "127.0.0.1:"]),
    ] {
        let _ = std::fs::remove_file(&file);
        let mut config = Config::trusting();
        config.audit = Some(AuditLog::new(&file));
        config.proxies = proxies.iter().map(|ip| ip.parse().unwrap()).collect();
        let at = replica_with(Arc::new(Memory::new()), config).await;
        for header in ["1.1.1.1, 192.0.2.7", "192.0.2.8, 10.0.0.9", "nonsense"] {
            let body = r#"{"name":"a","token":1,"how":"release"}"#;
            let evict = request("POST", "/v1/evict", &[("X-Forwarded-For", header)], body);
            raw(at.address(), &evict).await.is(200);
        }
        // Each eviction is logged before and after it. The first line of each was written before the answer.
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let told: Vec<Value> = lines.filter(|line| line["outcome"].is_null()).collect();
        assert_eq!(told.len(), 3, "{text}");
        for (line, peer) in told.iter().zip(&peers) {
            let found = line["peer"].as_str().unwrap();
            assert!(found.starts_with(peer), "{found} is not {peer}");
        }
    }
}

#[tokio::test]
async fn a_tenth_of_the_connections_is_for_those_that_renew() {
    let mut config = Config::trusting();
    config.limits.connections = 10;
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let client = Client::new();
    let id = client.claim();
    let mut others = Vec::new();
    for _ in 0..9 {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        stream
            .write_all(&request("GET", "/healthz", &[], ""))
            .await
            .unwrap();
        answer(&mut stream).await.is(200);
        others.push(stream);
    }
    // One more connection, without renewals, waits.
    let mut waits = TcpStream::connect(at.address()).await.unwrap();
    let healthz = request("GET", "/healthz", &[], "");
    waits.write_all(&healthz).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(300), waits.readable()).await;
    assert!(early.is_err(), "it is served");
    // A renewal over one of the open connections makes room for its peer.
    let take = client.bytes(
        "PUT",
        &format!("/v1/claims/{id}"),
        &serde_json::json!({"name": "a"}),
    );
    others[0].write_all(&take).await.unwrap();
    let token = answer(&mut others[0]).await.number("token");
    let body = serde_json::json!({"name": "a", "token": token});
    let renew = client.bytes("POST", &format!("/v1/claims/{id}/renew"), &body);
    others[0].write_all(&renew).await.unwrap();
    answer(&mut others[0]).await.is(200);
    client.renew(&at, id, "a", token).await.is(200);
    // The waiting connection gets its turn when another one ends.
    others.pop();
    answer(&mut waits).await.is(200);
}

/// As after kill -9: the replica has ended, and a later request gets no answer, however late its connection learns of
/// the end.
#[test]
fn a_replica_that_has_ended_answers_nothing() {
    let one_task_at_a_time = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(1)
        .build();
    one_task_at_a_time.unwrap().block_on(async {
        let at = one().await;
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).await.unwrap();
        answer(&mut stream).await.is(200);
        // The event loop looks for requests after this task, and before the task of the connection.
        tokio::spawn(async {});
        drop(at);
        assert_eq!(stream.try_write(request).unwrap(), request.len());
        let mut left = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut left));
        // It may also be reset.
        let _ = read.await.expect("the connection stays open");
        assert_eq!(String::from_utf8_lossy(&left), "");
    });
}

#[tokio::test]
async fn too_many_that_wait_are_refused_and_those_in_the_queue_wait_on() {
    let mut config = Config::trusting();
    config.limits.polls = 1;
    let store = LongPolls::new(Memory::new());
    let at = replica_with(Arc::new(store), config).await;
    let client = Client::new();
    let holds = client.claim();
    let token = client.hold(&at, holds, "a").await;
    let (first, second) = (client.claim(), client.claim());
    let refused = async {
        while at.service().polls() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let refused = client.poll(&at, second, "a", 60_000).await;
        refused.is_problem(429, "quota");
        assert_eq!(refused.header("retry-after"), Some("1"));
        let simple = r#"{"name":"a","wait_ms":1000}"#;
        let simple = ask(&at, "POST", "/v1/claims", simple).await;
        simple.is_problem(429, "quota");
        let look = ask(&at, "GET", "/v1/lock?name=a&seen=none&wait_ms=1000", "").await;
        look.is_problem(429, "quota");
        // Other clients are not refused.
        client.renew(&at, holds, "a", token).await.is(200);
        client.take(&at, client.claim(), "b").await;
        // This ends the open poll.
        client.poll(&at, first, "a", 0).await.is(202);
    };
    let (polled, ()) = tokio::join!(client.poll(&at, first, "a", 60_000), refused);
    polled.is(202);
    client.poll(&at, second, "a", 0).await.is(202);
    // Both are in the queue by now.
    let (first, second) = tokio::join!(
        client.poll(&at, first, "a", 300),
        client.poll(&at, second, "a", 300)
    );
    assert_eq!((first.status, second.status), (202, 202));
}
