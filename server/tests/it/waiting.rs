//! Polls: hand-offs, replicas that share a store, clients that go away, requests that arrive twice or late.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::layers::Meter;
use fencelock_core::{ClaimId, Memory};
use fencelock_server::Server;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::client::{
    Answer, Client, PUSHED, answer, is_free, look, one, one_with_long_polls, replica, two, until,
    waiters,
};

/// Polls again and again, as a client does, until the claim holds.
async fn hold(client: &Client, at: &Server, id: ClaimId, name: &str) -> Answer {
    loop {
        let answer = client.poll(at, id, name, 60_000).await;
        if answer.status != 202 {
            answer.is(200);
            return answer;
        }
    }
}

#[tokio::test]
async fn a_release_wakes_the_waiter_at_once() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    let token = client.hold(&at, holds, "a").await;
    let wait = hold(&client, &at, waits, "a");
    let release = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        let released = Instant::now();
        client.release(&at, holds, "a").await.is(200);
        released
    };
    let (held, released) = tokio::join!(wait, release);
    assert!(held.number("token") > token);
    assert!(released.elapsed() < PUSHED, "that was a poll");
}

#[tokio::test]
async fn a_poll_lasts_as_long_as_asked_and_half_a_window_at_most() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let id = client.claim();
    for (wait, least, most) in [(0, 0, 4000), (200, 200, 4000), (60_000, 5000, 15_000)] {
        let begun = Instant::now();
        let waits = client.poll(&at, id, "a", wait).await;
        waits.is(202);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(least), "{wait}: {took:?}");
        assert!(took < Duration::from_millis(most), "{wait}: {took:?}");
    }
    assert_eq!(at.service().polls(), 0);
}

#[tokio::test]
async fn a_claim_goes_on_at_any_replica() {
    let ((one, other), client) = (two().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    let token = client.take(&one, holds, "a").await;
    client.renew(&other, holds, "a", token).await.is(200);
    // The waiter keeps its place before a later one.
    client.poll(&one, waits, "a", 0).await.is(202);
    client.poll(&one, client.claim(), "a", 0).await.is(202);
    let moved = client.poll(&other, waits, "a", 0).await.is(202);
    assert_eq!(moved["ahead"], 0);
    client.release(&other, holds, "a").await.is(200);
    let held = hold(&client, &one, waits, "a").await;
    let token = held.number("token");
    client.renew(&other, waits, "a", token).await.is(200);
    client.renew(&one, waits, "a", token).await.is(200);
    assert_eq!(
        client.release(&one, waits, "a").await.is(200)["released"],
        "released"
    );
}

#[tokio::test]
async fn a_replica_that_ends_without_notice_costs_a_request() {
    let ((dies, lives), client) = (two().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    client.hold(&lives, holds, "a").await;
    let mut stream = TcpStream::connect(dies.address()).await.unwrap();
    let body = json!({"name": "a", "queue": true, "wait_ms": 60_000});
    let poll = client.bytes("PUT", &format!("/v1/claims/{waits}"), &body);
    stream.write_all(&poll).await.unwrap();
    until(&lives, "a", "waited for", |lock| waiters(lock) == 1).await;
    drop(dies);
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
    assert!(ended.is_err() || rest.is_empty(), "{rest:?}");
    // It still has its place.
    client.poll(&lives, client.claim(), "a", 0).await.is(202);
    let moved = client.poll(&lives, waits, "a", 0).await.is(202);
    assert_eq!(moved["ahead"], 0);
    client.release(&lives, holds, "a").await.is(200);
    hold(&client, &lives, waits, "a").await;
}

#[tokio::test]
async fn a_newer_request_ends_an_open_poll() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    let token = client.hold(&at, client.claim(), "a").await;
    let id = client.claim();
    let begun = Instant::now();
    let poll = client.poll(&at, id, "a", 60_000);
    let newer = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        client.poll(&at, id, "a", 0).await.is(202)
    };
    let (first, second) = tokio::join!(poll, newer);
    assert_eq!(first.is(202)["ahead"], second["ahead"]);
    assert!(begun.elapsed() < PUSHED);
    assert_eq!(look(&at, "a").await["token"], token);
}

#[tokio::test]
async fn a_release_ends_an_open_poll_and_its_place() {
    let (at, client) = (one().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let id = client.claim();
    let leave = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        client.release(&at, id, "a").await.is(200)
    };
    let (polled, left) = tokio::join!(client.poll(&at, id, "a", 60_000), leave);
    polled.is(202);
    assert_eq!(left["released"], "left-queue");
    assert_eq!(waiters(&look(&at, "a").await), 0);
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn duplicates_of_every_request_are_harmless() {
    let ((one, other), client) = (two().await, Client::new());
    let id = client.claim();
    let token = client.take(&one, id, "a").await;
    for at in [&one, &other, &one] {
        assert_eq!(
            client.put(at, id, json!({"name": "a"})).await.is(200)["token"],
            token
        );
        assert_eq!(
            client.renew(at, id, "a", token).await.is(200)["token"],
            token
        );
    }
    // A late take neither shortens the lease nor changes the token.
    client.put(&other, id, json!({"name": "a"})).await.is(200);
    let left = look(&one, "a").await["holders"][0]["ttl_left_ms"]
        .as_u64()
        .unwrap();
    assert!(left > 20_000, "{left}");
    assert_eq!(
        client.release(&one, id, "a").await.is(200)["released"],
        "released"
    );
    for at in [&one, &other] {
        assert_eq!(
            client.release(at, id, "a").await.is(200)["released"],
            "already-expired"
        );
        client
            .renew(at, id, "a", token)
            .await
            .is_problem(410, "lost");
    }
}

#[tokio::test]
async fn many_requests_of_one_claim_at_once_give_one_grant() {
    let ((one, other), client) = (two().await, Client::new());
    let (one, other, client) = (Arc::new(one), Arc::new(other), Arc::new(client));
    let id = client.claim();
    let mut takes = tokio::task::JoinSet::new();
    for at in [&one, &other, &one, &other, &one, &other] {
        let (at, client) = (Arc::clone(at), Arc::clone(&client));
        takes.spawn(async move { client.poll(&at, id, "a", 500).await.is(200)["token"].clone() });
    }
    let tokens: Vec<Value> = takes.join_all().await;
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    assert_eq!(
        look(&one, "a").await["holders"].as_array().unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_late_take_after_the_release_leaves_one_window_at_most() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    client.take(&at, id, "a").await;
    client.release(&at, id, "a").await.is(200);
    client
        .put(&at, id, json!({"name": "a", "ttl_ms": 3_600_000}))
        .await
        .is(200);
    // This has much less patience than the ttl is long.
    until(&at, "a", "free", is_free).await;
}

/// Whether the only poll ends when its client leaves. By itself it ends a second after it began.
async fn ends_with_its_client(at: &Server, poll: &[u8]) -> bool {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    stream.write_all(poll).await.unwrap();
    while at.service().polls() == 0 {
        if begun.elapsed() > Duration::from_secs(1) {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(stream);
    while at.service().polls() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
    begun.elapsed() < Duration::from_millis(800)
}

#[tokio::test]
async fn a_client_that_goes_away_keeps_its_place_for_a_window_and_is_forgotten() {
    let meter = Arc::new(Meter::new(Arc::new(Memory::new())));
    let (at, client) = (replica(Arc::clone(&meter) as _).await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let id = client.claim();
    let body = json!({"name": "a", "queue": true, "wait_ms": 60_000});
    let poll = client.bytes("PUT", &format!("/v1/claims/{id}"), &body);
    // The machine may stand still during one of them.
    let mut tries = 1;
    while !ends_with_its_client(&at, &poll).await {
        assert!(tries < 3, "the poll went on");
        tries += 1;
    }
    // Nothing was undone: the claim has its place, and no client asks for it.
    assert_eq!(waiters(&look(&at, "a").await), 1);
    assert_eq!((meter.counts().withdrawn, at.service().claims()), (0, 1));
    until(&at, "a", "without a waiter", |lock| waiters(lock) == 0).await;
    let forgotten = async {
        while at.service().claims() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), forgotten)
        .await
        .expect("it is not forgotten");
    assert_eq!(meter.counts().withdrawn, 0);
}

#[tokio::test]
async fn an_open_connection_serves_many_requests_also_pipelined() {
    let (at, client) = (one().await, Client::new());
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    let ids = [client.claim(), client.claim()];
    let take = |id: &ClaimId, name: &str| {
        client.bytes("PUT", &format!("/v1/claims/{id}"), &json!({"name": name}))
    };
    let both = [take(&ids[0], "a"), take(&ids[1], "b")].concat();
    stream.write_all(&both).await.unwrap();
    let mut bytes = Vec::new();
    while bytes
        .windows(8)
        .filter(|seen| seen == b"\"state\":")
        .count()
        < 2
    {
        let read = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut bytes)
            .await
            .unwrap();
        assert_ne!(read, 0);
    }
    stream.write_all(&take(&ids[0], "a")).await.unwrap();
    answer(&mut stream).await.is(200);
}

#[tokio::test]
async fn draining_answers_polls_and_serves_renewals_and_releases() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    let token = client.hold(&at, holds, "a").await;
    let begun = Instant::now();
    let polled = client.poll(&at, waits, "a", 60_000);
    let drain = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        at.service().refuse_new();
    };
    let (polled, ()) = tokio::join!(polled, drain);
    polled.is(202);
    assert_eq!(polled.header("connection"), Some("close"));
    assert!(begun.elapsed() < PUSHED);
    crate::client::ask(&at, "GET", "/readyz", "")
        .await
        .is_problem(503, "draining");
    crate::client::ask(&at, "GET", "/healthz", "").await.is(200);
    let refused = client.put(&at, client.claim(), json!({"name": "b"})).await;
    refused.is_problem(503, "draining");
    // A claim that would have to wait is also refused: it has no place here that it could lose.
    let refused = client.poll(&at, client.claim(), "a", 60_000).await;
    refused.is_problem(503, "draining");
    assert_eq!(waiters(&look(&at, "a").await), 1);
    let simple = crate::client::ask(&at, "POST", "/v1/claims", r#"{"name":"b"}"#).await;
    simple.is_problem(503, "draining");
    assert!(is_free(&look(&at, "b").await));
    // A waiter of this replica is served, but not waited for.
    client.poll(&at, waits, "a", 60_000).await.is(202);
    client.renew(&at, holds, "a", token).await.is(200);
    client.release(&at, holds, "a").await.is(200);
    hold(&client, &at, waits, "a").await;
    assert_eq!(at.drain(Duration::from_secs(5)).await, 0);
}

/// A place in the queue of one lock must not become one in the queue of another lock.
#[tokio::test]
async fn a_claim_that_waits_for_one_lock_is_refused_for_another() {
    let (at, client, other) = (one().await, Client::new(), Client::new());
    for name in ["a", "b"] {
        other.hold(&at, other.claim(), name).await;
    }
    let id = client.claim();
    client.poll(&at, id, "a", 0).await.is(202);
    client.poll(&at, id, "b", 0).await.is_problem(410, "ended");
    client.poll(&at, id, "a", 0).await.is(202);
    assert_eq!(waiters(&look(&at, "b").await), 0);
}
