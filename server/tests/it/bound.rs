//! Stores on which a claim belongs to the replica that placed it: etcd, ZooKeeper and Redlock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Engine, Promises};
use fencelock_core::layers::{Fault, FaultHandle, Layer, Trouble};
use fencelock_core::{ClaimId, Error, LeaseKind, Memory};
use fencelock_server::{Config, Server, Service};
use fencelock_testbed::{Etcd, Redlock, ZooKeeper};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{
    Answer, Client, ask, in_order, is_free, look, raw, replica, request, until, waiters,
};

/// The replica that is meant, which a client of a bound store must name.
pub(crate) async fn send(
    at: &Server,
    client: &Client,
    method: &str,
    path: &str,
    body: &Value,
) -> Answer {
    let headers = [
        ("Fencelock-Key", client.key.secret()),
        ("Fencelock-Replica", at.service().id()),
    ];
    raw(
        at.address(),
        &request(method, path, &headers, &body.to_string()),
    )
    .await
}

pub(crate) async fn put(at: &Server, client: &Client, id: ClaimId, body: Value) -> Answer {
    send(at, client, "PUT", &format!("/v1/claims/{id}"), &body).await
}

pub(crate) async fn renew(
    at: &Server,
    client: &Client,
    id: ClaimId,
    token: &Value,
    ttl: u64,
) -> Answer {
    let body = json!({"name": "a", "token": token, "ttl_ms": ttl});
    send(at, client, "POST", &format!("/v1/claims/{id}/renew"), &body).await
}

pub(crate) async fn release(at: &Server, client: &Client, id: ClaimId) -> Answer {
    let body = json!({"name": "a"});
    send(
        at,
        client,
        "POST",
        &format!("/v1/claims/{id}/release"),
        &body,
    )
    .await
}

/// A store in memory that promises no more than a store whose claims belong to one process.
#[derive(Debug)]
struct Bound {
    below: Arc<dyn Engine>,
    promises: Promises,
}

impl Layer for Bound {
    fn below(&self) -> &dyn Engine {
        &*self.below
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

pub(crate) async fn replica_of(below: Arc<dyn Engine>) -> Server {
    let promises = below.promises().clone().portable(false);
    replica(Arc::new(Bound { below, promises })).await
}

pub(crate) async fn memory() -> (Server, FaultHandle) {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    (replica_of(Arc::new(fault)).await, handle)
}

/// A hold that lasts as long as a connection to a database cannot be renewed from another replica, or by another process.
#[test]
fn a_store_whose_holds_depend_on_a_connection_is_refused() {
    let below = Arc::new(Memory::new());
    let promises = below.promises().clone().lease(LeaseKind::Connection);
    let refused = Service::new(Arc::new(Bound { below, promises }), Config::default());
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Config { .. }), "{refused}");
}

#[tokio::test]
async fn a_request_must_name_this_replica() {
    let ((at, _), (other, _)) = (memory().await, memory().await);
    let client = Client::new();
    let id = client.claim();
    client
        .put(&at, id, json!({"name": "a"}))
        .await
        .is_problem(428, "name-the-replica");
    let path = format!("/v1/claims/{id}");
    let headers = [
        ("Fencelock-Key", client.key.secret()),
        ("Fencelock-Replica", other.service().id()),
    ];
    for (method, path) in [
        ("PUT", path.clone()),
        ("POST", format!("{path}/renew")),
        ("POST", format!("{path}/release")),
        ("POST", "/v1/renewals".to_owned()),
        ("POST", "/v1/batch".to_owned()),
    ] {
        let refused = raw(at.address(), &request(method, &path, &headers, "{}")).await;
        refused.is_problem(421, "other-replica");
        assert_eq!(refused.get("replica"), at.service().id());
    }
    assert_eq!(
        ask(&at, "GET", "/v1/store", "").await.is(200)["binding"],
        "replica"
    );
    assert_eq!(at.service().bound_claims(), 0);
}

#[tokio::test]
async fn a_claim_without_renewals_is_withdrawn_and_its_id_ends() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let begun = Instant::now();
    let taken = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    assert_eq!(taken["full_ttl"], false);
    let token = &taken["token"];
    assert_eq!(
        renew(&at, &client, id, token, 3000).await.is(200)["full_ttl"],
        true
    );
    until(&at, "a", "free", is_free).await;
    assert!(
        begun.elapsed() >= Duration::from_millis(2900),
        "{:?}",
        begun.elapsed()
    );
    while at.service().bound_claims() > 0 {
        tokio::task::yield_now().await;
    }
    renew(&at, &client, id, token, 3000)
        .await
        .is_problem(410, "lost");
    put(&at, &client, id, json!({"name": "a"}))
        .await
        .is_problem(410, "ended");
    assert_eq!(
        release(&at, &client, id).await.is(200)["released"],
        "already-expired"
    );
}

#[tokio::test]
async fn a_late_renewal_from_before_a_downgrade_does_not_end_the_hold() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let first = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    let body = json!({"name": "a", "mode": "shared"});
    let second = put(&at, &client, id, body).await.is(200);
    assert!(second["token"].as_u64() > first["token"].as_u64());
    renew(&at, &client, id, &first["token"], 30_000)
        .await
        .is_problem(410, "lost");
    // In its new mode.
    let body = json!({"name": "a", "mode": "shared", "token": second["token"], "ttl_ms": 30_000});
    let path = format!("/v1/claims/{id}/renew");
    send(&at, &client, "POST", &path, &body).await.is(200);
    let other = Client::new();
    let refused = put(&at, &other, other.claim(), json!({"name": "a"})).await;
    refused.is_problem(409, "held");
}

#[tokio::test]
async fn a_hold_is_kept_for_the_longest_renewal_unless_one_shortens() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let taken = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    let token = &taken["token"];
    renew(&at, &client, id, token, 30_000).await.is(200);
    // Like a late copy of an earlier renewal.
    let told = renew(&at, &client, id, token, 200).await;
    assert!(told.number("lease_ms_since_sent") <= 200);
    sleep(Duration::from_millis(500)).await;
    renew(&at, &client, id, token, 30_000).await.is(200);
    let begun = Instant::now();
    let body = json!({"name": "a", "token": token, "ttl_ms": 200, "shorten": true});
    let path = format!("/v1/claims/{id}/renew");
    let told = send(&at, &client, "POST", &path, &body).await;
    assert!(told.number("lease_ms_since_sent") <= 200);
    until(&at, "a", "free", is_free).await;
    let ended = begun.elapsed();
    assert!(ended >= Duration::from_millis(150) && ended < Duration::from_secs(15));
}

#[tokio::test]
async fn a_waiter_that_does_not_ask_again_leaves_the_queue() {
    let ((at, _), client) = (memory().await, Client::new());
    let (holds, waits) = (client.claim(), client.claim());
    let taken = put(&at, &client, holds, json!({"name": "a"})).await.is(200);
    renew(&at, &client, holds, &taken["token"], 30_000)
        .await
        .is(200);
    let wait = json!({"name": "a", "queue": true});
    put(&at, &client, waits, wait.clone()).await.is(202);
    until(&at, "a", "left", |lock| waiters(lock) == 0).await;
    while at.service().bound_claims() > 1 {
        tokio::task::yield_now().await;
    }
    put(&at, &client, waits, wait)
        .await
        .is_problem(410, "ended");
    assert_eq!(look(&at, "a").await["token"], taken["token"]);
}

#[tokio::test]
async fn a_withdrawal_is_repeated_until_the_store_confirms_it() {
    let ((at, handle), client) = (memory().await, Client::new());
    let id = client.claim();
    put(&at, &client, id, json!({"name": "a"})).await.is(200);
    handle.next([
        Trouble::LoseRequest,
        Trouble::LoseRequest,
        Trouble::LoseRequest,
    ]);
    release(&at, &client, id)
        .await
        .is_problem(503, "unavailable");
    // The replica continues by itself, and does not accept the claim again.
    put(&at, &client, id, json!({"name": "a"}))
        .await
        .is_problem(410, "ended");
    let begun = Instant::now();
    until(&at, "a", "free", is_free).await;
    while at.service().bound_claims() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn no_claim_is_withdrawn_during_a_call_about_it() {
    let ((at, handle), client) = (memory().await, Client::new());
    let id = client.claim();
    handle.next([Trouble::Hold]);
    let late = put(&at, &client, id, json!({"name": "a"}));
    let open = async {
        // Longer than a window: the claim is due while the store delays its take.
        tokio::time::sleep(Duration::from_millis(2300)).await;
        assert_eq!(at.service().bound_claims(), 1);
        handle.open(1);
    };
    let (answer, ()) = tokio::join!(late, open);
    // Whatever the answer is, its validity is over, and the key is withdrawn after the take.
    if answer.status == 200 {
        assert_eq!(answer.number("lease_ms_since_sent"), 2000);
    } else {
        answer.is_problem(410, "ended");
    }
    until(&at, "a", "free", is_free).await;
}

#[tokio::test]
async fn draining_asks_holders_to_go_and_leaves_what_they_believe_in() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let taken = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    at.service().refuse_new();
    let renewed = renew(&at, &client, id, &taken["token"], 30_000)
        .await
        .is(200);
    assert_eq!(renewed["release_requested"], true);
    let service = at.service().clone();
    assert_eq!(at.drain(Duration::from_millis(300)).await, 1);
    assert_eq!((service.bound_claims(), service.bound_holds()), (1, 1));
}

/// A waiter could get its turn when nobody may hold there any more.
#[tokio::test]
async fn draining_sends_waiters_to_another_replica() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let taken = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    renew(&at, &client, id, &taken["token"], 30_000)
        .await
        .is(200);
    let (waiter, second) = (Client::new(), Client::new());
    let (waits, later) = (waiter.claim(), second.claim());
    let wait = |ms: u64| json!({"name": "a", "queue": true, "wait_ms": ms});
    put(&at, &second, later, wait(0)).await.is(202);
    let poll = put(&at, &waiter, waits, wait(10_000));
    let drained = async {
        until(&at, "a", "two wait", |lock| waiters(lock) == 2).await;
        at.service().refuse_new();
    };
    let (answer, ()) = tokio::join!(poll, drained);
    answer.is_problem(410, "ended");
    // One that had no request under way then.
    put(&at, &second, later, wait(10_000))
        .await
        .is_problem(410, "ended");
    until(&at, "a", "none waits", |lock| waiters(lock) == 0).await;
    let new = put(&at, &waiter, waiter.claim(), wait(10_000)).await;
    new.is_problem(503, "draining");
    release(&at, &client, id).await.is(200);
}

/// When the store reports the end of a hold, neither its client nor the end of the replica waits any longer.
#[tokio::test]
async fn a_hold_that_was_taken_away_is_over_here_at_once() {
    let ((at, handle), client) = (memory().await, Client::new());
    let id = client.claim();
    let taken = put(&at, &client, id, json!({"name": "a"})).await.is(200);
    renew(&at, &client, id, &taken["token"], 30_000)
        .await
        .is(200);
    let evict = json!({"name": "a", "token": taken["token"], "how": "release"}).to_string();
    ask(&at, "POST", "/v1/evict", &evict).await.is(200);
    let over = async {
        while at.service().bound_claims() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let over = tokio::time::timeout(Duration::from_secs(10), over).await;
    over.expect("it is kept until its lease is over");
    // The replica need not ask the store.
    handle.by_chance(|_| Trouble::LoseRequest);
    renew(&at, &client, id, &taken["token"], 30_000)
        .await
        .is_problem(410, "lost");
    assert_eq!(at.drain(Duration::from_secs(5)).await, 0);
}

/// Two clients of one replica. Their holds depend on the same session, which one client keeps alive. The hold of the
/// other client, which is silent, still ends.
async fn a_silent_client_loses_alone(at: &Server, ttl: u64) {
    let (alive, silent) = (Client::new(), Client::new());
    let (a, b) = (alive.claim(), silent.claim());
    let body = |name: &str| json!({"name": name, "ttl_ms": ttl});
    let taken = put(at, &alive, a, body("a")).await.is(200);
    renew(at, &alive, a, &taken["token"], ttl).await.is(200);
    let lost = put(at, &silent, b, body("b")).await.is(200);
    let path = format!("/v1/claims/{b}/renew");
    let renewal = json!({"name": "b", "token": lost["token"], "ttl_ms": ttl});
    let begun = Instant::now();
    let renewed = send(at, &silent, "POST", &path, &renewal).await.is(200);
    assert!(renewed["lease_ms_since_sent"].as_u64().unwrap() <= ttl);
    let waiter = Client::new();
    let next = waiter.claim();
    let mut granted = None;
    while granted.is_none() {
        assert!(
            begun.elapsed() < Duration::from_millis(4 * ttl),
            "the silent client's hold did not end"
        );
        renew(at, &alive, a, &taken["token"], ttl).await.is(200);
        let wait = json!({"name": "b", "ttl_ms": ttl, "queue": true, "wait_ms": 500});
        let answer = put(at, &waiter, next, wait).await;
        granted = (answer.status == 200).then(|| answer.number("token"));
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(ttl * 9 / 10),
        "{:?}",
        begun.elapsed()
    );
    assert!(granted > lost["token"].as_u64());
    renew(at, &alive, a, &taken["token"], ttl).await.is(200);
    send(at, &silent, "POST", &path, &renewal)
        .await
        .is_problem(410, "lost");
    assert_eq!(release(at, &alive, a).await.is(200)["released"], "released");
    assert!(is_free(&look(at, "a").await));
}

#[tokio::test]
async fn etcd_a_silent_client_loses_alone() {
    let etcd = Etcd::start().unwrap();
    let at = replica(fencelock::open_engine(etcd.url()).await.unwrap()).await;
    a_silent_client_loses_alone(&at, 6000).await;
}

#[tokio::test]
async fn zookeeper_a_silent_client_loses_alone() {
    let zookeeper = ZooKeeper::start().unwrap();
    let at = replica(fencelock::open_engine(zookeeper.url()).await.unwrap()).await;
    a_silent_client_loses_alone(&at, 6000).await;
}

#[tokio::test]
async fn redlock_a_silent_client_loses_alone() {
    let redlock = Redlock::start(3).unwrap();
    let url = format!("{}?node-timeout=500ms", redlock.url());
    let at = replica(fencelock::open_engine(url).await.unwrap()).await;
    assert_eq!(
        ask(&at, "GET", "/v1/store", "").await.is(200)["binding"],
        "replica"
    );
    a_silent_client_loses_alone(&at, 3000).await;
}

/// Another client keeps the session alive, so the store's countdown does not apply to the hold of a silent client.
#[tokio::test]
async fn etcd_a_joined_hold_lasts_no_longer_than_its_replica_keeps_it() {
    let etcd = Etcd::start().unwrap();
    let at = replica(fencelock::open_engine(etcd.url()).await.unwrap()).await;
    let other = replica(fencelock::open_engine(etcd.url()).await.unwrap()).await;
    let (alive, silent) = (Client::new(), Client::new());
    let (a, b) = (alive.claim(), silent.claim());
    let ttl = 6000;
    let body = |name: &str, owner: &str| json!({"name": name, "ttl_ms": ttl, "owner": owner});
    let taken = put(&at, &alive, a, body("a", "alive")).await.is(200);
    let lost = put(&at, &silent, b, body("b", "silent")).await.is(200);
    let path = format!("/v1/claims/{b}/renew");
    let renewal = json!({"name": "b", "token": lost["token"], "ttl_ms": ttl, "owner": "silent"});
    let begun = Instant::now();
    send(&at, &silent, "POST", &path, &renewal).await.is(200);
    // The renewal came at the time of its answer at the latest. Leases are told in whole milliseconds.
    let most = Duration::from_millis(ttl + 1) + begun.elapsed();
    let question = json!({"name": "b", "owner": "silent"}).to_string();
    let mut answers = 0;
    loop {
        renew(&at, &alive, a, &taken["token"], ttl).await.is(200);
        let (sent, attested) = (
            begun.elapsed(),
            ask(&at, "POST", "/v1/attest", &question).await.is(200),
        );
        if attested["holder"].is_null() {
            break;
        }
        let lease = Duration::from_millis(attested["lease_ms_since_sent"].as_u64().unwrap());
        assert!(sent + lease < most, "{lease:?} after {sent:?}");
        let elsewhere = ask(&other, "POST", "/v1/attest", &question).await.is(200);
        assert_eq!(elsewhere["lease_ms_since_sent"], 0, "{elsewhere}");
        answers += 1;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(answers > 5, "{answers}");
}

#[tokio::test]
async fn etcd_one_request_takes_and_another_releases() {
    let etcd = Etcd::start().unwrap();
    let at = replica(fencelock::open_engine(etcd.url()).await.unwrap()).await;
    let taken = ask(&at, "POST", "/v1/claims", r#"{"name":"a","ttl_ms":10000}"#)
        .await
        .is(201);
    ask(&at, "POST", "/v1/claims", r#"{"name":"a"}"#)
        .await
        .is_problem(409, "held");
    let path = format!("/v1/claims/{}/release", taken["claim"].as_str().unwrap());
    // The answer has all that a later request needs.
    let headers = [
        ("Fencelock-Key", taken["key"].as_str().unwrap()),
        ("Fencelock-Replica", taken["replica"].as_str().unwrap()),
    ];
    let released = raw(
        at.address(),
        &request("POST", &path, &headers, r#"{"name":"a"}"#),
    )
    .await;
    assert_eq!(released.is(200)["released"], "released");
    assert_eq!(at.service().bound_claims(), 0);
}

#[tokio::test]
async fn a_request_for_another_lock_or_grant_does_not_affect_the_hold() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let body = json!({"name": "a", "ttl_ms": 30_000});
    let taken = put(&at, &client, id, body).await.is(200);
    let token = taken["token"].clone();
    let other = json!(token.as_u64().unwrap() + 1);
    renew(&at, &client, id, &other, 30_000)
        .await
        .is_problem(410, "lost");
    let path = |what: &str| format!("/v1/claims/{id}/{what}");
    let body = json!({"name": "b", "token": token, "ttl_ms": 30_000});
    send(&at, &client, "POST", &path("renew"), &body)
        .await
        .is_problem(410, "lost");
    for (name, token) in [("a", &other), ("b", &token)] {
        let one = json!({"claim": id, "name": name, "token": token, "ttl_ms": 30_000});
        let many = json!({ "claims": [one] });
        let many = send(&at, &client, "POST", "/v1/renewals", &many).await;
        assert_eq!(many.is(200)["claims"][0]["state"], "lost");
    }
    put(&at, &client, id, json!({"name": "b"}))
        .await
        .is_problem(410, "ended");
    let released = send(
        &at,
        &client,
        "POST",
        &path("release"),
        &json!({"name": "b"}),
    )
    .await;
    assert_eq!(released.is(200)["released"], "not-owner");
    // It still holds.
    renew(&at, &client, id, &token, 30_000).await.is(200);
    assert!(is_free(&look(&at, "b").await));
    assert_eq!(
        release(&at, &client, id).await.is(200)["released"],
        "released"
    );
}

/// The store may end a hold before this replica has withdrawn its claim.
#[tokio::test]
async fn a_claim_whose_lease_is_over_is_not_granted_again() {
    let ((at, faults), client) = (memory().await, Client::new());
    let id = client.claim();
    let body = json!({"name": "a", "ttl_ms": 200, "lock_delay_ms": 60_000});
    let taken = put(&at, &client, id, body.clone()).await.is(200);
    let lease = taken["lease_ms_since_sent"].as_u64().unwrap();
    drop(faults);
    tokio::time::sleep(Duration::from_millis(lease + 1)).await;
    put(&at, &client, id, body).await.is_problem(410, "ended");
    renew(&at, &client, id, &taken["token"], 200)
        .await
        .is_problem(410, "lost");
}

#[tokio::test]
async fn a_request_in_a_batch_for_another_lock_does_not_affect_the_hold() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let body = json!({"name": "a", "ttl_ms": 30_000});
    let taken = put(&at, &client, id, body).await.is(200);
    let batch = async |what: &str, name: &str| {
        let one = json!({"claim": id, what: {"name": name}});
        let all = json!({ "claims": [one] });
        let answer = send(&at, &client, "POST", "/v1/batch", &all).await;
        in_order(&[one], &answer.lines()).remove(0)
    };
    let refused = batch("take", "b").await;
    assert_eq!(refused["body"]["type"], "urn:fencelock:ended", "{refused}");
    let released = batch("release", "b").await;
    assert_eq!(released["body"]["released"], "not-owner", "{released}");
    // It still holds.
    renew(&at, &client, id, &taken["token"], 30_000)
        .await
        .is(200);
    assert!(is_free(&look(&at, "b").await));
    let released = batch("release", "a").await;
    assert_eq!(released["body"]["released"], "released", "{released}");
}

/// The store may end a hold before this replica has withdrawn its claim.
#[tokio::test]
async fn a_batch_does_not_grant_a_claim_again_whose_lease_is_over() {
    let ((at, _), client) = (memory().await, Client::new());
    let take = json!({"name": "a", "ttl_ms": 200, "lock_delay_ms": 60_000});
    let one = json!({"claim": client.claim(), "take": take});
    let all = json!({ "claims": [one] });
    let batch = async || {
        let answer = send(&at, &client, "POST", "/v1/batch", &all).await;
        in_order(std::slice::from_ref(&one), &answer.lines()).remove(0)
    };
    let taken = batch().await;
    let lease = taken["body"]["lease_ms_since_sent"].as_u64().unwrap();
    tokio::time::sleep(Duration::from_millis(lease + 1)).await;
    let refused = batch().await;
    assert_eq!(refused["body"]["type"], "urn:fencelock:ended", "{refused}");
}
