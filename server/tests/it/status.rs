//! Each row of the tables of answers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_core::engine::{Engine, Promises};
use fencelock_core::layers::Layer;
use fencelock_server::Config;
use serde_json::{Value, json};

use crate::client::{Client, ask, look, one, replica, replica_with, until, waiters};

#[tokio::test]
async fn a_first_grant_is_one_window_long_and_a_renewal_brings_the_whole_lease() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let taken = client
        .put(
            &at,
            id,
            json!({"name": "a", "owner": "me", "label": "by hand"}),
        )
        .await;
    let body = taken.is(200);
    taken.has_common_headers();
    assert_eq!(taken.header("content-type"), Some("application/json"));
    let token = body["token"].as_u64().unwrap();
    // A lease counts from when the store was asked, which is later than the receipt of the request by as much as the
    // machine is busy. What the store keeps is exact, and is read below.
    let lease = body["lease_ms_since_sent"].as_u64().unwrap();
    assert!((1000..20_000).contains(&lease), "{body}");
    assert_eq!(body["claim"], id.to_string());
    assert_eq!(body["sequencer"], format!("fl1:x:{token}:{id}:a"));
    assert_eq!(
        (&body["mode"], &body["full_ttl"]),
        (&json!("exclusive"), &json!(false))
    );
    assert_eq!(body["release_requested"], false);
    let left = look(&at, "a").await["holders"][0]["ttl_left_ms"]
        .as_u64()
        .unwrap();
    assert!(left <= 2000, "the store keeps it for {left} ms");

    let renewed = client.renew(&at, id, "a", token).await;
    let body = renewed.is(200);
    let lease = body["lease_ms_since_sent"].as_u64().unwrap();
    assert!((28_000..60_000).contains(&lease), "{body}");
    assert_eq!(
        (&body["state"], &body["full_ttl"]),
        (&json!("held"), &json!(true))
    );
    assert_eq!(body["token"], token);

    let lock = look(&at, "a").await;
    let holder = &lock["holders"][0];
    assert_eq!(
        (&holder["owner"], &holder["claim"]),
        (&json!("me"), &json!(id.to_string()))
    );
    let released = client.release(&at, id, "a").await;
    assert_eq!(released.is(200), json!({"released": "released"}));
}

#[tokio::test]
async fn a_lease_shorter_than_the_window_is_whole_at_once() {
    let (at, client) = (one().await, Client::new());
    let taken = client
        .put(&at, client.claim(), json!({"name": "a", "ttl_ms": 500}))
        .await;
    assert_eq!(taken.is(200)["full_ttl"], true);
    let lock = look(&at, "a").await;
    if let Some(holder) = lock["holders"].as_array().unwrap().first() {
        assert!(holder["ttl_left_ms"].as_u64().unwrap() <= 500, "{lock}");
    }
}

#[tokio::test]
async fn a_claim_that_was_not_to_wait_is_refused() {
    let (at, client) = (one().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let refused = client.put(&at, client.claim(), json!({"name": "a"})).await;
    refused.is_problem(409, "held");
    assert_eq!(refused.get("name"), "a");
    assert_eq!(waiters(&look(&at, "a").await), 0);
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn a_waiting_claim_gets_its_place() {
    let (at, client) = (one().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    for ahead in 0..2 {
        let waits = client.poll(&at, client.claim(), "a", 0).await;
        assert_eq!(
            waits.is(202),
            json!({"state": "waiting", "ahead": ahead, "poll_within_ms": 2000})
        );
    }
}

#[tokio::test]
async fn a_release_says_what_it_found() {
    let (at, client) = (one().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    let outcome = async |id| client.release(&at, id, "a").await.is(200)["released"].clone();
    assert_eq!(outcome(client.claim()).await, "already-expired");
    client.hold(&at, holds, "a").await;
    client.poll(&at, waits, "a", 0).await.is(202);
    assert_eq!(outcome(waits).await, "left-queue");
    assert_eq!(outcome(waits).await, "not-owner");
    assert_eq!(outcome(holds).await, "released");
    assert_eq!(outcome(holds).await, "already-expired");
}

#[tokio::test]
async fn an_abandoned_hold_keeps_its_lock_delay() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let body = json!({"name": "a", "lock_delay_ms": 60_000});
    client.put(&at, id, body).await.is(200);
    let body = json!({"name": "a", "lock_delay_ms": 60_000, "how": "abandon"});
    let left = client
        .ask(&at, "POST", &format!("/v1/claims/{id}/release"), &body)
        .await;
    assert_eq!(left.is(200)["released"], "released");
    client
        .put(&at, client.claim(), json!({"name": "a"}))
        .await
        .is_problem(409, "held");
}

#[tokio::test]
async fn a_renewal_with_another_token_or_of_nothing_is_lost() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    client
        .renew(&at, id, "a", token + 1)
        .await
        .is_problem(410, "lost");
    client.renew(&at, id, "a", token).await.is(200);
    client
        .renew(&at, client.claim(), "a", token)
        .await
        .is_problem(410, "lost");
}

#[tokio::test]
async fn a_request_to_release_comes_with_the_next_renewal() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    let evict = async |how: &str, token: u64| {
        let body = json!({"name": "a", "token": token, "how": how});
        ask(&at, "POST", "/v1/evict", &body.to_string())
            .await
            .is(200)
    };
    assert_eq!(evict("ask", token + 1).await, json!({"done": false}));
    assert_eq!(evict("ask", token).await, json!({"done": true}));
    assert_eq!(
        client.renew(&at, id, "a", token).await.is(200)["release_requested"],
        true
    );
    assert_eq!(evict("release", token).await, json!({"done": true}));
    client
        .renew(&at, id, "a", token)
        .await
        .is_problem(410, "lost");
    assert_eq!(evict("release", token).await, json!({"done": false}));
}

#[tokio::test]
async fn shared_holders_and_permits_hold_together() {
    let (at, client) = (one().await, Client::new());
    for _ in 0..3 {
        let body = json!({"name": "a", "mode": "shared"});
        let taken = client.put(&at, client.claim(), body).await;
        assert_eq!(taken.is(200)["mode"], "shared");
        assert!(
            taken
                .get("sequencer")
                .as_str()
                .unwrap()
                .starts_with("fl1:s:")
        );
    }
    let permit = json!({"name": "p", "mode": "permit", "permit_count": 2});
    client
        .put(&at, client.claim(), permit.clone())
        .await
        .is(200);
    client
        .put(&at, client.claim(), permit.clone())
        .await
        .is(200);
    client
        .put(&at, client.claim(), permit)
        .await
        .is_problem(409, "held");
    let holder = &look(&at, "p").await["holders"][0];
    assert_eq!(
        (&holder["mode"], &holder["token"].is_u64()),
        (&json!("permit"), &true)
    );
}

#[tokio::test]
async fn a_hold_can_be_downgraded() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    let shared = client
        .put(&at, id, json!({"name": "a", "mode": "shared"}))
        .await;
    shared.is(200);
    assert!(shared.number("token") > token);
    client
        .put(&at, client.claim(), json!({"name": "a", "mode": "shared"}))
        .await
        .is(200);
}

#[tokio::test]
async fn what_the_store_does_not_offer_is_unsupported() {
    let (at, client) = (one().await, Client::new());
    for (member, value) in [
        ("ttl_ms", json!(0)),
        ("ttl_ms", json!(99)),
        ("ttl_ms", json!(u64::MAX)),
        ("lock_delay_ms", json!(u64::MAX)),
    ] {
        let mut body = json!({"name": "a"});
        body[member] = value;
        let refused = client.put(&at, client.claim(), body).await;
        refused.is_problem(422, "unsupported");
    }
    let at = replica(Arc::new(Plain::new())).await;
    for more in [
        json!({"mode": "shared"}),
        json!({"mode": "permit", "permit_count": 1}),
        json!({"lock_delay_ms": 1}),
    ] {
        let mut body = json!({"name": "a"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        client
            .put(&at, client.claim(), body.clone())
            .await
            .is_problem(422, "unsupported");
        ask(&at, "POST", "/v1/claims", &body.to_string())
            .await
            .is_problem(422, "unsupported");
    }
}

#[tokio::test]
async fn a_lock_shows_its_holders_and_its_queue() {
    let (at, client) = (one().await, Client::new());
    assert_eq!(
        look(&at, "a").await,
        json!({"name": "a", "token": null, "holders": [], "waiters": []})
    );
    let token = client.hold(&at, client.claim(), "a").await;
    client.poll(&at, client.claim(), "a", 0).await.is(202);
    let lock = look(&at, "a").await;
    assert_eq!((&lock["token"], waiters(&lock)), (&json!(token), 1));
    assert_eq!(lock["waiters"][0]["mode"], "exclusive");
}

#[tokio::test]
async fn a_look_waits_for_a_change() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let token = client.take(&at, id, "a").await;
    let path = format!("/v1/lock?name=a&seen={token}&wait_ms=60000");
    let watched = async { ask(&at, "GET", &path, "").await.is(200) };
    let released = async {
        while at.service().polls() == 0 {
            tokio::task::yield_now().await;
        }
        client.release(&at, id, "a").await.is(200)
    };
    let (lock, _) = tokio::join!(watched, released);
    assert_eq!(lock["token"], Value::Null);
    // A change that has already happened is answered at once. Without a change the answer comes when the time is over.
    assert_eq!(
        ask(&at, "GET", &path, "").await.is(200)["token"],
        Value::Null
    );
    let path = "/v1/lock?name=a&seen=none&wait_ms=30";
    assert_eq!(
        ask(&at, "GET", path, "").await.is(200)["token"],
        Value::Null
    );
}

#[tokio::test]
async fn locks_are_listed_by_prefix() {
    let (at, client) = (one().await, Client::new());
    for name in ["a/1", "a/2", "b/1"] {
        client.hold(&at, client.claim(), name).await;
    }
    let names = async |query: &str| {
        let listed = ask(&at, "GET", &format!("/v1/locks{query}"), "")
            .await
            .is(200);
        assert_eq!(listed["next"], Value::Null);
        let locks = listed["locks"].as_array().unwrap().iter();
        let mut names: Vec<String> = locks
            .map(|lock| lock["name"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("").await, ["a/1", "a/2", "b/1"]);
    assert_eq!(names("?prefix=a%2F&limit=10").await, ["a/1", "a/2"]);
    assert!(names("?prefix=c").await.is_empty());
    for query in [
        "?limit=0",
        "?limit=1001",
        "?limit=x",
        "?prefix=%0A",
        "?more=1",
    ] {
        let refused = ask(&at, "GET", &format!("/v1/locks{query}"), "").await;
        refused.is_problem(400, "invalid");
    }
}

#[tokio::test]
async fn a_sequencer_is_checked() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let taken = client.put(&at, id, json!({"name": "a"})).await;
    let body = json!({"sequencer": taken.get("sequencer")}).to_string();
    let held = async || ask(&at, "POST", "/v1/check", &body).await.is(200)["held"].clone();
    assert_eq!(held().await, true);
    client.release(&at, id, "a").await.is(200);
    assert_eq!(held().await, false);
    let bad = ask(&at, "POST", "/v1/check", r#"{"sequencer":"fl1:x"}"#).await;
    bad.is_problem(400, "invalid");
}

#[tokio::test]
async fn a_hold_is_attested_to_a_process_that_joins_it() {
    let (at, client) = (one().await, Client::new());
    client
        .put(&at, client.claim(), json!({"name": "a", "owner": "me"}))
        .await
        .is(200);
    let attest = async |owner: &str| {
        let body = json!({"name": "a", "owner": owner}).to_string();
        ask(&at, "POST", "/v1/attest", &body).await.is(200)
    };
    let mine = attest("me").await;
    assert_eq!(mine["holder"]["owner"], "me");
    assert!((1..20_000).contains(&mine["lease_ms_since_sent"].as_u64().unwrap()));
    assert_eq!(
        attest("you").await,
        json!({"holder": null, "lease_ms_since_sent": 0})
    );
}

#[tokio::test]
async fn the_store_says_what_it_promises() {
    let at = one().await;
    let answer = ask(&at, "GET", "/v1/store", "").await;
    let store = answer.is(200);
    answer.has_common_headers();
    assert_eq!(
        (&store["engine"], &store["binding"]),
        (&json!("memory"), &json!("store"))
    );
    assert_eq!(
        (&store["claim_window_ms"], &store["poll_ms"]),
        (&json!(2000), &json!(1000))
    );
    assert_eq!(
        (&store["min_ttl_ms"], &store["order"]),
        (&json!(100), &json!("fifo"))
    );
    assert_eq!(store["replica"], at.service().id());
    assert_eq!(
        store["features"],
        json!([
            "simple", "renewals", "batch", "place", "shorten", "events", "without"
        ])
    );
    let findings = ask(&at, "GET", "/v1/store/findings", "").await.is(200);
    assert_eq!(findings, json!({"findings": []}));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(
            ask(&at, "GET", path, "").await.is(200),
            json!({"status": "ok"})
        );
    }
}

#[tokio::test]
async fn a_renewal_and_a_release_report_that_the_grant_has_ended() {
    let (at, client) = (one().await, Client::new());
    let id = client.claim();
    let taken = client
        .put(&at, id, json!({"name": "a", "ttl_ms": 100}))
        .await;
    let token = taken.is(200)["token"].as_u64().unwrap();
    until(&at, "a", "free", |lock| lock["token"].is_null()).await;
    client
        .renew(&at, id, "a", token)
        .await
        .is_problem(410, "lost");
    assert_eq!(
        client.release(&at, id, "a").await.is(200)["released"],
        "already-expired"
    );
    // A client may place an id again until it has released the claim.
    let again = client.put(&at, id, json!({"name": "a"})).await;
    again.is(200);
    assert!(again.number("token") > token);
}

/// A store that promises exclusive locks only.
#[derive(Debug)]
struct Plain {
    memory: Memory,
    promises: Promises,
}

impl Plain {
    fn new() -> Self {
        let promises = Promises::new("plain", "none").portable(true);
        let memory = Memory::new();
        Self { memory, promises }
    }
}

impl Layer for Plain {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// A limit of the configuration must not be reported as a limit of the store.
#[tokio::test]
async fn a_lease_beyond_the_configured_limit_names_it() {
    let mut config = fencelock_server::Config::default();
    config.limits.max_ttl = std::time::Duration::from_secs(10);
    let at =
        crate::client::replica_with(std::sync::Arc::new(fencelock_core::Memory::new()), config)
            .await;
    let refused = ask(&at, "POST", "/v1/claims", r#"{"name":"a","ttl_ms":20000}"#).await;
    refused.is_problem(422, "unsupported");
    let detail = refused.get("detail").to_string();
    assert!(detail.contains("max_ttl of its configuration"), "{detail}");
    assert!(!detail.contains("store"), "{detail}");
}

/// A claim or renewal without a ttl gets one that the service allows.
#[tokio::test]
async fn a_lease_that_is_not_named_is_no_longer_than_the_longest() {
    let mut config = fencelock_server::Config::default();
    config.limits.max_ttl = std::time::Duration::from_secs(10);
    let at = crate::client::replica_with(Arc::new(Memory::new()), config).await;
    let simple = ask(&at, "POST", "/v1/claims", r#"{"name":"a"}"#).await;
    assert_eq!(simple.is(201)["ttl_ms"], 10_000);
    let delayed = r#"{"name":"b","lock_delay_ms":4000}"#;
    let delayed = ask(&at, "POST", "/v1/claims", delayed).await;
    assert_eq!(delayed.is(201)["ttl_ms"], 6000);
    let client = Client::new();
    let id = client.claim();
    let token = client.take(&at, id, "c").await;
    let renewed = client.renew(&at, id, "c", token).await;
    assert_eq!(renewed.is(200)["full_ttl"], true);
    assert!(renewed.number("lease_ms_since_sent") > 8000);
    let one = json!({"claim": id, "name": "c", "token": token});
    let many = json!({ "claims": [one] });
    let many = client.ask(&at, "POST", "/v1/renewals", &many).await.is(200);
    assert_eq!(many["claims"][0]["full_ttl"], true);
    client.release(&at, id, "c").await.is(200);
    // A ttl that was named is not changed.
    let named = ask(&at, "POST", "/v1/claims", r#"{"name":"d","ttl_ms":30000}"#);
    named.await.is_problem(422, "unsupported");
}

/// The operator may restart the service with a shorter longest lease. A holder goes on with what it may have.
#[tokio::test]
async fn a_renewal_for_longer_than_the_limit_gets_the_limit() {
    let memory = Memory::new();
    let before = replica(Arc::new(memory.another())).await;
    let mut config = Config::trusting();
    config.limits.max_ttl = Duration::from_secs(60);
    let (after, client) = (replica_with(Arc::new(memory), config).await, Client::new());
    let id = client.claim();
    let ttl = json!({"name": "a", "ttl_ms": 600_000});
    let token = client.put(&before, id, ttl).await.number("token");
    let path = format!("/v1/claims/{id}/renew");
    let body = json!({"name": "a", "token": token, "ttl_ms": 600_000});
    let renewed = client.ask(&after, "POST", &path, &body).await;
    let lease = renewed.is(200)["lease_ms_since_sent"].as_u64().unwrap();
    assert!((50_000..300_000).contains(&lease), "{lease}");
    assert_eq!(renewed.get("full_ttl"), true);
    // The client may believe in the time that it asks for here, also without an answer. So the store must not keep it for less.
    let shorter = json!({"name": "a", "token": token, "ttl_ms": 120_000, "shorten": true});
    client
        .ask(&after, "POST", &path, &shorter)
        .await
        .is_problem(422, "unsupported");
    let body = json!({"claims": [{"claim": id, "name": "a", "token": token, "ttl_ms": 600_000}]});
    let renewed = client
        .ask(&after, "POST", "/v1/renewals", &body)
        .await
        .is(200);
    assert_eq!(renewed["claims"][0]["state"], "held", "{renewed}");
    // A lock-delay from before stays whole.
    let id = client.claim();
    let body = json!({"name": "b", "lock_delay_ms": 600_000});
    client.put(&before, id, body).await.is(200);
    let body = json!({"name": "b", "lock_delay_ms": 600_000, "how": "abandon"});
    let path = format!("/v1/claims/{id}/release");
    client.ask(&after, "POST", &path, &body).await.is(200);
    let left = look(&after, "b").await["holders"][0]["ttl_left_ms"].as_u64();
    assert!(left > Some(300_000), "{left:?}");
}
