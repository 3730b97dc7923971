//! The service on a real server.

use std::time::Duration;

use fencelock_server::Server;
use fencelock_testbed::{Flow, Proxy, Redis};
use serde_json::{Value, json};

use crate::client::{Client, ask, is_free, look, replica, replica_with, until, waiters};

async fn on(url: &str) -> Server {
    replica(fencelock::open_engine(patient(url)).await.unwrap()).await
}

/// The usual timeout of an answer is short for a machine that stands still for a moment.
pub(crate) fn patient(url: &str) -> String {
    let begins = if url.contains('?') { '&' } else { '?' };
    format!("{url}{begins}response-timeout=5s")
}

#[tokio::test]
async fn a_claim_goes_on_at_any_replica() {
    let redis = Redis::start().unwrap();
    let (one, other) = (on(&redis.url()).await, on(&redis.url()).await);
    let client = Client::new();
    let (holds, waits) = (client.claim(), client.claim());
    let token = client.take(&one, holds, "a").await;
    client.renew(&other, holds, "a", token).await.is(200);
    client.poll(&one, waits, "a", 0).await.is(202);
    client.poll(&one, client.claim(), "a", 0).await.is(202);
    assert_eq!(client.poll(&other, waits, "a", 0).await.is(202)["ahead"], 0);
    let wait = async {
        loop {
            let polled = client.poll(&other, waits, "a", 60_000).await;
            if polled.status != 202 {
                return polled;
            }
        }
    };
    let release = async { client.release(&one, holds, "a").await.is(200) };
    let (held, released) = tokio::join!(wait, release);
    assert_eq!(released["released"], "released");
    let next = held.is(200)["token"].as_u64().unwrap();
    assert!(next > token);
    client.renew(&one, waits, "a", next).await.is(200);
    client
        .renew(&other, holds, "a", token)
        .await
        .is_problem(410, "lost");
    assert_eq!(
        client.release(&one, waits, "a").await.is(200)["released"],
        "released"
    );
}

/// A renewal for another mode is a mistake of its client, and not a loss: the claim still holds.
#[tokio::test]
async fn a_renewal_in_another_mode_is_refused_and_does_not_affect_the_hold() {
    let redis = Redis::start().unwrap();
    let (one, other) = (on(&redis.url()).await, on(&redis.url()).await);
    let client = Client::new();
    let (exclusive, shared) = (json!({"mode": "exclusive"}), json!({"mode": "shared"}));
    let permit = |count: u32| json!({"mode": "permit", "permit_count": count});
    let cases = [
        (exclusive.clone(), shared.clone()),
        (exclusive.clone(), permit(2)),
        (shared, exclusive),
        (permit(2), permit(3)),
    ];
    for (at, (mode, wrong)) in cases.into_iter().enumerate() {
        let (id, name) = (client.claim(), format!("a{at}"));
        let with = |mode: &Value, token: Option<u64>| {
            let mut body = mode.clone();
            body["name"] = json!(name);
            if let Some(token) = token {
                body["token"] = json!(token);
            }
            body
        };
        let taken = client.put(&one, id, with(&mode, None)).await;
        taken.is(200);
        let token = taken.number("token");
        let path = format!("/v1/claims/{id}/renew");
        let renew = async |at: &Server, mode: &Value, token: u64| {
            let body = with(mode, Some(token));
            client.ask(at, "POST", &path, &body).await
        };
        for at in [&one, &other] {
            let refused = renew(at, &wrong, token).await;
            refused.is_problem(400, "invalid");
            renew(at, &mode, token).await.is(200);
        }
        let never = renew(&one, &wrong, token + 1).await;
        never.is_problem(410, "lost");
    }
}

#[tokio::test]
async fn a_grant_reaches_the_replica_to_which_the_waiter_moved() {
    let redis = Redis::start().unwrap();
    // A poll lasts half as long.
    let url = format!("{}?claim-window=10s", redis.url());
    let (dies, lives) = (on(&url).await, on(&url).await);
    let client = Client::new();
    let (holds, waits) = (client.claim(), client.claim());
    client.hold(&lives, holds, "a").await;
    client.poll(&dies, waits, "a", 0).await.is(202);
    drop(dies);
    let begun = tokio::time::Instant::now();
    let wait = client.poll(&lives, waits, "a", 60_000);
    let release = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.release(&lives, holds, "a").await.is(200);
    };
    let (held, ()) = tokio::join!(wait, release);
    held.is(200);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "that was the end of the poll"
    );
}

#[tokio::test]
async fn one_request_takes_and_a_client_that_is_gone_holds_nothing() {
    let redis = Redis::start().unwrap();
    let at = on(&redis.url()).await;
    let client = Client::new();
    let taken = ask(&at, "POST", "/v1/claims", r#"{"name":"a","ttl_ms":60000}"#).await;
    assert!(taken.is(201)["lease_ms_since_sent"].as_u64().unwrap() > 58_000);
    let body = r#"{"name":"a","wait_ms":60000}"#;
    let gone = tokio::time::timeout(
        Duration::from_millis(300),
        ask(&at, "POST", "/v1/claims", body),
    );
    assert!(gone.await.is_err());
    until(&at, "a", "left", |lock| waiters(lock) == 0).await;
    let token = taken.number("token");
    let body = json!({"name": "a", "token": token, "how": "release"}).to_string();
    assert_eq!(
        ask(&at, "POST", "/v1/evict", &body).await.is(200)["done"],
        true
    );
    assert!(is_free(&look(&at, "a").await));
    assert!(client.take(&at, client.claim(), "a").await > token);
}

#[tokio::test]
async fn a_store_that_is_cut_off_is_unavailable_and_comes_back() {
    let redis = Redis::start().unwrap();
    let proxy = Proxy::start(redis.port()).unwrap();
    let url = format!("{}?response-timeout=2s", redis.url_at(proxy.port()));
    let at = replica(fencelock::open_engine(&url).await.unwrap()).await;
    let client = Client::new();
    let id = client.claim();
    let token = client.hold(&at, id, "a").await;
    proxy.requests(Flow::Lose);
    client
        .renew(&at, id, "a", token)
        .await
        .is_problem(503, "unavailable");
    let refused = client.put(&at, client.claim(), json!({"name": "b"})).await;
    refused.is_problem(503, "unavailable");
    proxy.requests(Flow::Pass);
    proxy.reset();
    let renewed = async {
        while client.renew(&at, id, "a", token).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), renewed)
        .await
        .expect("it stays away");
}

#[tokio::test]
async fn what_is_no_lock_is_left_alone() {
    let redis = Redis::start().unwrap();
    let at = on(&redis.url()).await;
    assert!(is_free(&look(&at, "a").await));
    let store = ask(&at, "GET", "/v1/store", "").await.is(200);
    assert_eq!(
        (&store["engine"], &store["binding"]),
        (&json!("redis"), &json!("store"))
    );
    let findings = ask(&at, "GET", "/v1/store/findings", "").await.is(200);
    assert!(findings["findings"].is_array());
}

/// Neither the grant nor the release names a ttl, and the longest one leaves less than the usual one beside the lock-delay.
#[tokio::test]
async fn an_abandoned_hold_keeps_its_lock_delay_whatever_the_longest_ttl() {
    let mut config = fencelock_server::Config::default();
    config.limits.max_ttl = Duration::from_secs(30);
    let redis = Redis::start().unwrap();
    let engine = fencelock::open_engine(patient(&redis.url())).await.unwrap();
    let at = replica_with(engine, config).await;
    let client = Client::new();
    let id = client.claim();
    let body = json!({"name": "a", "lock_delay_ms": 20_000});
    client.put(&at, id, body).await.is(200);
    let body = json!({"name": "a", "lock_delay_ms": 20_000, "how": "abandon"});
    let path = format!("/v1/claims/{id}/release");
    let left = client.ask(&at, "POST", &path, &body).await;
    assert_eq!(left.is(200)["released"], "released");
    let next = client.put(&at, client.claim(), json!({"name": "a"})).await;
    next.is_problem(409, "held");
}
