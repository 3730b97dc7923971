//! The simple mode.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_core::layers::{Fault, Trouble};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::client::{
    Client, PUSHED, ask, is_free, look, one, one_with_long_polls, raw, replica, request, until,
    waiters,
};

#[tokio::test]
async fn one_request_takes_and_another_releases() {
    let at = one().await;
    let sent = Instant::now();
    let taken = ask(
        &at,
        "POST",
        "/v1/claims",
        r#"{"name":"nightly","owner":"web1"}"#,
    )
    .await;
    let body = taken.is(201);
    taken.has_common_headers();
    let (claim, key) = (
        body["claim"].as_str().unwrap(),
        body["key"].as_str().unwrap(),
    );
    let token = &body["token"];
    assert_eq!(body["sequencer"], format!("fl1:x:{token}:{claim}:nightly"));
    assert_eq!(
        (&body["name"], &body["ttl_ms"]),
        (&json!("nightly"), &json!(30_000))
    );
    // The whole lease begins with the confirmation, which the same request makes.
    let longest = 30_000 + sent.elapsed().as_millis() as u64;
    let lease = body["lease_ms_since_sent"].as_u64().unwrap();
    assert!((28_000..=longest).contains(&lease), "{lease}");
    let holder = &look(&at, "nightly").await["holders"][0];
    assert_eq!(holder["owner"], "web1");
    assert!(holder["ttl_left_ms"].as_u64().unwrap() > 28_000);
    let post = async |what: &str, body: String| {
        let path = format!("/v1/claims/{claim}/{what}");
        raw(
            at.address(),
            &request("POST", &path, &[("Fencelock-Key", key)], &body),
        )
        .await
    };
    let renewal = json!({"name": "nightly", "token": token, "owner": "web1"});
    post("renew", renewal.to_string()).await.is(200);
    let released = post("release", r#"{"name":"nightly"}"#.to_owned()).await;
    assert_eq!(released.is(200)["released"], "released");
    assert!(is_free(&look(&at, "nightly").await));
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn a_lock_that_is_held_is_refused_at_once_or_when_the_wait_is_over() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    client.hold(&at, id, "a").await;
    for (wait, least) in [(0, 0), (2500, 2500)] {
        let begun = Instant::now();
        let body = json!({"name": "a", "wait_ms": wait}).to_string();
        ask(&at, "POST", "/v1/claims", &body)
            .await
            .is_problem(409, "held");
        assert!(begun.elapsed() >= Duration::from_millis(least));
        assert_eq!(waiters(&look(&at, "a").await), 0);
    }
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn a_wait_ends_with_the_lock() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    client.hold(&at, id, "a").await;
    let take = ask(
        &at,
        "POST",
        "/v1/claims",
        r#"{"name":"a","wait_ms":20000,"ttl_ms":60000}"#,
    );
    let release = async {
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        client.release(&at, id, "a").await.is(200);
    };
    let (taken, ()) = tokio::join!(take, release);
    assert!(taken.is(201)["lease_ms_since_sent"].as_u64().unwrap() >= 59_000);
}

/// A client that closes its side of the connection after the request has gone away, too: the service cannot tell it from one that
/// ended.
#[tokio::test]
async fn a_waiter_whose_client_goes_away_leaves_the_queue() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    let id = client.claim();
    client.hold(&at, id, "a").await;
    for closes_its_side in [false, true] {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        let take = request("POST", "/v1/claims", &[], r#"{"name":"a","wait_ms":60000}"#);
        stream.write_all(&take).await.unwrap();
        until(&at, "a", "waited for", |lock| waiters(lock) == 1).await;
        let gone = Instant::now();
        let kept = match closes_its_side {
            true => {
                stream.shutdown().await.unwrap();
                Some(stream)
            }
            false => {
                drop(stream);
                None
            }
        };
        until(&at, "a", "left", |lock| waiters(lock) == 0).await;
        assert!(gone.elapsed() < PUSHED, "it lapsed instead");
        drop(kept);
    }
}

#[tokio::test]
async fn a_grant_whose_client_is_gone_before_the_answer_is_given_back() {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let at = replica(Arc::new(fault)).await;
    // The grant exists. The store delays its confirmation while the client goes away.
    handle.next([Trouble::None, Trouble::Hold]);
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    let take = request(
        "POST",
        "/v1/claims",
        &[],
        r#"{"name":"a","ttl_ms":3600000}"#,
    );
    stream.write_all(&take).await.unwrap();
    until(&at, "a", "held", |lock| !is_free(lock)).await;
    drop(stream);
    // Wait for the end of the handler, which shows in the number of open connections.
    let gone = Instant::now();
    while at.connections() > 1 {
        assert!(gone.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
    handle.open(1);
    until(&at, "a", "given back", is_free).await;
    assert!(gone.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_store_that_fails_in_the_middle_keeps_nothing() {
    for troubles in [
        [Trouble::LoseReply, Trouble::None, Trouble::None],
        [Trouble::None, Trouble::LoseReply, Trouble::None],
        [Trouble::None, Trouble::LoseReply, Trouble::LoseRequest],
    ] {
        let (fault, handle) = Fault::new(Arc::new(Memory::new()));
        let at = replica(Arc::new(fault)).await;
        handle.next(troubles);
        let body = r#"{"name":"a","ttl_ms":3600000}"#;
        let failed = ask(&at, "POST", "/v1/claims", body).await;
        failed.is_problem(503, "unavailable");
        assert_eq!(failed.header("retry-after"), Some("1"));
        until(&at, "a", "given back", is_free).await;
    }
}

#[tokio::test]
async fn waits_have_an_end() {
    let at = one().await;
    let refused = ask(&at, "POST", "/v1/claims", r#"{"name":"a","wait_ms":60001}"#).await;
    refused.is_problem(400, "invalid");
}
