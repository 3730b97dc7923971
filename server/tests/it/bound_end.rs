//! Stores on which a claim belongs to the replica that placed it: how long a hold is kept, whatever its replica does.

use std::time::Duration;

use fencelock_core::ClaimId;
use fencelock_core::layers::Trouble;
use fencelock_server::Server;
use fencelock_testbed::{Etcd, Flow, Proxy, Redlock, ZooKeeper};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::bound::{memory, put, release, renew, send};
use crate::client::{Answer, Client, is_free, replica, until};

/// When a client that sent its request then must stop believing in this answer.
fn end_of_validity(sent: Instant, answer: &Answer) -> Instant {
    let lease = Duration::from_millis(answer.number("lease_ms_since_sent"));
    sent + lease - lease / 100 - Duration::from_millis(2)
}

/// Polls until the claim holds. Returns when it was told, with its answer.
async fn granted(at: &Server, client: &Client, id: ClaimId) -> (Instant, Value) {
    let wait = json!({"name": "a", "queue": true, "wait_ms": 1000});
    let begun = Instant::now();
    loop {
        let answer = put(at, client, id, wait.clone()).await;
        if answer.status == 200 {
            return (Instant::now(), answer.body());
        }
        answer.is(202);
        let took = begun.elapsed();
        assert!(took < Duration::from_secs(30), "not granted in {took:?}");
    }
}

/// The client of a hold cannot renew it after its replica has ended, and believes in it until its lease is over.
async fn a_hold_outlives_its_replica(store: &str) {
    let engine = fencelock::open_engine(store).await.unwrap();
    let at = replica(engine.clone()).await;
    let other = replica(fencelock::open_engine(store).await.unwrap()).await;
    let (client, waiter) = (Client::new(), Client::new());
    let (id, next) = (client.claim(), waiter.claim());
    let ttl = 5000;
    let taken = put(&at, &client, id, json!({"name": "a", "ttl_ms": ttl})).await;
    let token = taken.is(200)["token"].clone();
    let sent = Instant::now();
    let renewed = renew(&at, &client, id, &token, ttl).await;
    renewed.is(200);
    let valid_until = end_of_validity(sent, &renewed);
    put(&other, &waiter, next, json!({"name": "a", "queue": true}))
        .await
        .is(202);
    assert_eq!(at.drain(Duration::from_millis(100)).await, 1);
    engine.close().await.unwrap();
    let ended = Instant::now();
    let (at, grant) = granted(&other, &waiter, next).await;
    let early = valid_until.saturating_duration_since(at);
    assert!(early.is_zero(), "{early:?} before the end of the validity");
    assert!(grant["token"].as_u64() > token.as_u64());
    // It does not wait for the client.
    let before = valid_until.saturating_duration_since(ended);
    assert!(before > Duration::from_millis(500), "{before:?}");
}

#[tokio::test]
async fn etcd_a_hold_outlives_its_drained_replica() {
    let etcd = Etcd::start().unwrap();
    a_hold_outlives_its_replica(&etcd.url()).await;
}

#[tokio::test]
async fn zookeeper_a_hold_outlives_its_drained_replica() {
    let zookeeper = ZooKeeper::start().unwrap();
    a_hold_outlives_its_replica(&zookeeper.url()).await;
}

#[tokio::test]
async fn redlock_a_hold_outlives_its_drained_replica() {
    let redlock = Redlock::start(3).unwrap();
    // A busy machine may need longer than the usual 50 ms for an answer.
    let url = format!("{}?node-timeout=500ms", redlock.url());
    a_hold_outlives_its_replica(&url).await;
}

/// What no client believes in is given back: waiters and holds that are over.
#[tokio::test]
async fn the_end_of_a_replica_gives_back_what_nobody_believes_in() {
    let ((at, _), client) = (memory().await, Client::new());
    let (over, waits) = (client.claim(), client.claim());
    // It is kept for its lock-delay.
    let take = json!({"name": "a", "ttl_ms": 100, "lock_delay_ms": 20_000});
    put(&at, &client, over, take).await.is(200);
    let wait = json!({"name": "a", "queue": true});
    put(&at, &client, waits, wait).await.is(202);
    sleep(Duration::from_millis(101)).await;
    let service = at.service().clone();
    assert_eq!(service.bound_claims(), 2);
    assert_eq!(at.drain(Duration::ZERO).await, 1);
    assert_eq!(service.bound_claims(), 0);
}

/// The read of a poll takes long, and then the claim moves to a session that begins only then.
#[tokio::test]
async fn etcd_a_slow_poll_is_told_no_longer_lease_than_its_replica_keeps() {
    let etcd = Etcd::start().unwrap();
    let to_store = Proxy::start(etcd.port(0)).unwrap();
    let slow = etcd.url_at(&[to_store.port()]);
    let at = replica(fencelock::open_engine(&slow).await.unwrap()).await;
    let other = replica(fencelock::open_engine(&etcd.url()).await.unwrap()).await;
    let clients = [Client::new(), Client::new(), Client::new()];
    let [holds, polls, waits] = [0, 1, 2].map(|at| clients[at].claim());
    let take = json!({"name": "a", "ttl_ms": 9000});
    put(&other, &clients[0], holds, take).await.is(200);
    let poll = json!({"name": "a", "ttl_ms": 2000, "queue": true});
    put(&at, &clients[1], polls, poll.clone()).await.is(202);
    let wait = json!({"name": "a", "queue": true});
    put(&other, &clients[2], waits, wait).await.is(202);
    to_store.requests(Flow::Hold);
    release(&other, &clients[0], holds).await.is(200);
    let sent = Instant::now();
    let passes = async {
        sleep(Duration::from_millis(800)).await;
        to_store.requests(Flow::Pass);
    };
    let (answer, ()) = tokio::join!(put(&at, &clients[1], polls, poll), passes);
    answer.is(200);
    let valid_until = end_of_validity(sent, &answer);
    // It does not renew.
    let (at, _) = granted(&other, &clients[2], waits).await;
    let early = valid_until.saturating_duration_since(at);
    assert!(early.is_zero(), "{early:?} before the end of the validity");
}

/// The store answers the withdrawal of one claim late. Its client, who does not know that the claim is over, renews it together
/// with another one.
#[tokio::test]
async fn a_withdrawal_that_takes_long_does_not_hold_up_renewals() {
    let ((at, faults), client) = (memory().await, Client::new());
    let mut all = Vec::new();
    for name in ["a", "b"] {
        let id = client.claim();
        let taken = put(&at, &client, id, json!({"name": name})).await.is(200);
        all.push(json!({"claim": id, "name": name, "token": taken["token"]}));
    }
    let (withdraws, mut withdrawn) = tokio::sync::mpsc::unbounded_channel();
    let mut troubles = vec![Trouble::Hold, Trouble::LoseRequest];
    faults.by_chance(move |call| match call {
        "withdraw" => {
            let _ = withdraws.send(());
            troubles.pop().unwrap_or(Trouble::None)
        }
        _ => Trouble::None,
    });
    let ends: ClaimId = all[0]["claim"].as_str().unwrap().parse().unwrap();
    release(&at, &client, ends)
        .await
        .is_problem(503, "unavailable");
    // The replica repeats it.
    for _ in 0..2 {
        withdrawn.recv().await;
    }
    let body = json!({ "claims": all });
    let renewed = send(&at, &client, "POST", "/v1/renewals", &body).await;
    let states = &renewed.is(200)["claims"];
    let states = [0, 1].map(|at| states[at]["state"].clone());
    assert_eq!(states, ["lost", "held"], "{renewed:?}");
    faults.open(1);
    until(&at, "a", "free", is_free).await;
}

/// A mistake of its client, and not a loss: the claim is not withdrawn.
#[tokio::test]
async fn a_renewal_in_another_mode_does_not_end_the_hold() {
    let ((at, _), client) = (memory().await, Client::new());
    let id = client.claim();
    let mode = |mode: &str| json!({"name": "a", "mode": mode});
    put(&at, &client, id, mode("exclusive")).await.is(200);
    // A downgrade, so the mode is no longer that of the first request.
    let taken = put(&at, &client, id, mode("shared")).await.is(200);
    let renewal = |mode: &str| json!({"claim": id, "name": "a", "token": taken["token"], "mode": mode, "ttl_ms": 30_000});
    let renew = async |mode: &str| {
        let all = json!({ "claims": [renewal(mode)] });
        let answer = send(&at, &client, "POST", "/v1/renewals", &all).await;
        answer.is(200)["claims"][0]["state"].clone()
    };
    let mut one = renewal("exclusive");
    one.as_object_mut().unwrap().remove("claim");
    let path = format!("/v1/claims/{id}/renew");
    let refused = send(&at, &client, "POST", &path, &one).await;
    refused.is_problem(400, "invalid");
    assert_eq!(renew("exclusive").await, "lost");
    assert_eq!(renew("shared").await, "held");
}
