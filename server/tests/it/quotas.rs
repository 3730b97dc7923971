//! Quotas of principals: what they limit, and what they never limit.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::layers::{Fault, Trouble};
use fencelock_core::{ClaimId, Memory};
use fencelock_server::{Right, Server};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::{Answer, Client, in_order, raw, request};
use crate::rights::{User, serve, serve_on, user};

/// When half a second is over, the bucket may have another take.
const SOON: Duration = Duration::from_millis(450);

/// A claim of one of the two takes that a user has in a second, and the answers to two more takes.
struct UsedUp {
    at: Server,
    client: Client,
    id: ClaimId,
    token: Value,
    refused: [Answer; 2],
    begun: Instant,
}

/// Tries again on a new server if this took too long.
async fn used_up(busy: &User) -> UsedUp {
    for _ in 0..4 {
        let (at, client) = (serve(&[busy], |_| {}).await, Client::new());
        let id = client.claim();
        let path = format!("/v1/claims/{id}");
        let begun = Instant::now();
        let taken = busy
            .put_at(&at, &client, &path, &json!({"name": "a"}))
            .await;
        let token = taken.is(200)["token"].clone();
        let take = async |name: &str| {
            let body = json!({ "name": name });
            busy.ask(&at, "POST", "/v1/claims", &body).await
        };
        take("b").await.is(201);
        let refused = [
            take("c").await,
            busy.put(&at, &client, &json!({"name": "c"})).await,
        ];
        if begun.elapsed() < SOON {
            return UsedUp {
                at,
                client,
                id,
                token,
                refused,
                begun,
            };
        }
    }
    panic!("four requests always take half a second");
}

#[tokio::test]
async fn takes_are_limited_and_renewals_and_releases_never() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.takes_per_s = Some(2);
    let UsedUp {
        at,
        client,
        id,
        token,
        refused,
        begun,
    } = used_up(&busy).await;
    for refused in refused {
        refused.is_problem(429, "quota");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    let path = format!("/v1/claims/{id}");
    let headers = [
        ("Authorization", busy.header.as_str()),
        ("Fencelock-Key", client.key.secret()),
    ];
    for _ in 0..10 {
        // The answer to the first request may have been lost. But the same id for another lock is a new request.
        let again = busy
            .put_at(&at, &client, &path, &json!({"name": "a"}))
            .await;
        assert_eq!(again.is(200)["token"], token);
        let other = busy
            .put_at(&at, &client, &path, &json!({"name": "d"}))
            .await;
        if begun.elapsed() > SOON {
            break;
        }
        other.is_problem(429, "quota");
        let body = json!({"name": "a", "token": token}).to_string();
        raw(
            at.address(),
            &request("POST", &format!("{path}/renew"), &headers, &body),
        )
        .await
        .is(200);
        let body = json!({"claims": [{"claim": id, "name": "a", "token": token}]}).to_string();
        raw(
            at.address(),
            &request("POST", "/v1/renewals", &headers, &body),
        )
        .await
        .is(200);
    }
    busy.release(&at, &client, &path, "a").await.is(200);
    // The bucket fills again with time.
    while busy
        .ask(&at, "POST", "/v1/claims", &json!({"name": "c"}))
        .await
        .status
        != 201
    {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(490));
}

#[tokio::test]
async fn each_take_of_a_batch_is_counted_and_no_release() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.takes_per_s = Some(2);
    let (at, client) = (serve(&[&busy], |_| {}).await, Client::new());
    let headers = [
        ("Authorization", busy.header.as_str()),
        ("Fencelock-Key", client.key.secret()),
    ];
    let batch = async |asks: &str, ids: &[ClaimId]| {
        let one = |(number, id): (usize, &ClaimId)| json!({"claim": id, asks: {"name": format!("lock/{number}")}});
        let claims: Vec<Value> = ids.iter().enumerate().map(one).collect();
        let body = json!({ "claims": claims }).to_string();
        let bytes = request("POST", "/v1/batch", &headers, &body);
        in_order(&claims, &raw(at.address(), &bytes).await.lines())
    };
    let ids: Vec<ClaimId> = (0..20).map(|_| client.claim()).collect();
    let taken = batch("take", &ids).await;
    let of = |status: u64| {
        taken
            .iter()
            .filter(move |answer| answer["status"] == status)
    };
    // Meanwhile the bucket fills again, but for less than eight seconds.
    assert!((2..18).contains(&of(200).count()), "{taken:?}");
    assert_eq!(of(200).count() + of(429).count(), 20);
    assert!(
        of(429).all(|answer| answer["retry_after_s"] == 1),
        "{taken:?}"
    );
    for answer in batch("release", &ids).await {
        assert_eq!(answer["status"], 200, "{answer}");
    }
}

#[tokio::test]
async fn a_claim_in_the_queue_is_never_refused_for_quota() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.waiting = Some(1);
    busy.principal.takes_per_s = Some(4);
    let (at, client) = (serve(&[&busy], |_| {}).await, Client::new());
    busy.ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await
        .is(201);
    let wait = json!({"name": "a", "queue": true});
    let path = format!("/v1/claims/{}", client.claim());
    for _ in 0..10 {
        busy.put_at(&at, &client, &path, &wait).await.is(202);
    }
    busy.put(&at, &client, &wait).await.is_problem(429, "quota");
    let simple = busy
        .ask(
            &at,
            "POST",
            "/v1/claims",
            &json!({"name": "a", "wait_ms": 10}),
        )
        .await;
    simple.is_problem(429, "quota");
    // A client that does not wait is not counted, and a client that leaves makes room.
    busy.ask(&at, "POST", "/v1/claims", &json!({"name": "b"}))
        .await
        .is(201);
    busy.release(&at, &client, &path, "a").await.is(200);
    busy.put(&at, &client, &wait).await.is(202);
}

/// The first request is held up at the store while the others arrive. Each of them finds the lock held, so each asks for something new.
#[tokio::test]
async fn overlapping_requests_of_one_claim_are_counted_each() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.takes_per_s = Some(4);
    busy.principal.waiting = Some(1);
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let (at, client) = (
        serve_on(Arc::new(fault), &[&busy], |_| {}).await,
        Client::new(),
    );
    let body = json!({"name": "a"});
    busy.ask(&at, "POST", "/v1/claims", &body).await.is(201);
    let path = format!("/v1/claims/{}", client.claim());
    handle.next([Trouble::Hold]);
    let first = busy.put_at(&at, &client, &path, &body);
    let others = async {
        let others = (0..60).map(|_| busy.put_at(&at, &client, &path, &body));
        let others = futures_util::future::join_all(others);
        let open = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            handle.open(1);
        };
        tokio::join!(others, open).0
    };
    let (first, others) = tokio::join!(first, others);
    first.is_problem(409, "held");
    let refused = others.iter().filter(|answer| answer.status == 429).count();
    assert!(refused > 20, "{refused} of 60");
}

/// A request that does not queue is held up at the store while one that queues arrives.
#[tokio::test]
async fn a_claim_that_begins_to_queue_is_counted_as_a_waiter() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.waiting = Some(1);
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let (at, client) = (
        serve_on(Arc::new(fault), &[&busy], |_| {}).await,
        Client::new(),
    );
    let (tries, waits) = (json!({"name": "a"}), json!({"name": "a", "queue": true}));
    busy.ask(&at, "POST", "/v1/claims", &tries).await.is(201);
    busy.put(&at, &client, &waits).await.is(202);
    let path = format!("/v1/claims/{}", client.claim());
    handle.next([Trouble::Hold]);
    let first = busy.put_at(&at, &client, &path, &tries);
    let second = async {
        let second = busy.put_at(&at, &client, &path, &waits);
        let open = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            handle.open(1);
        };
        tokio::join!(second, open).0
    };
    let (first, second) = tokio::join!(first, second);
    first.is_problem(409, "held");
    second.is_problem(429, "quota");
}

/// A claim is taken at one replica, released at another one, and taken again at the first, which does not know of the release.
#[tokio::test]
async fn takes_that_are_released_at_another_replica_are_counted() {
    let mut busy = user("busy", &[("", Right::ALL)]);
    busy.principal.takes_per_s = Some(2);
    let memory = Memory::new();
    let one = serve_on(Arc::new(memory.another()), &[&busy], |_| {}).await;
    let (other, client) = (
        serve_on(Arc::new(memory), &[&busy], |_| {}).await,
        Client::new(),
    );
    let path = format!("/v1/claims/{}", client.claim());
    let body = json!({"name": "a"});
    let begun = Instant::now();
    let mut taken = 0;
    for _ in 0..60 {
        let answer = busy.put_at(&one, &client, &path, &body).await;
        if answer.status == 200 {
            taken += 1;
        } else {
            answer.is_problem(429, "quota");
        }
        busy.release(&other, &client, &path, "a").await.is(200);
    }
    // Two at once, two more that are owed, and two for each second.
    let most = 5.0 + 2.0 * begun.elapsed().as_secs_f64();
    assert!(f64::from(taken) <= most, "{taken} in {:?}", begun.elapsed());
}

#[tokio::test]
async fn a_release_for_another_lock_does_not_end_a_waiter() {
    let busy = user("busy", &[("", Right::ALL)]);
    let (at, client) = (serve(&[&busy], |_| {}).await, Client::new());
    busy.ask(&at, "POST", "/v1/claims", &json!({"name": "a"}))
        .await
        .is(201);
    let path = format!("/v1/claims/{}", client.claim());
    busy.put_at(&at, &client, &path, &json!({"name": "a", "queue": true}))
        .await
        .is(202);
    let released = busy.release(&at, &client, &path, "b").await.is(200);
    assert_eq!(released["released"], "not-owner");
    assert_eq!(at.service().claims(), 1);
}
