//! Renewals of many holds at once, and in batches.

use std::sync::Arc;

use fencelock_core::Memory;
use fencelock_core::layers::{Fault, Meter, Trouble};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, look, one, replica};

#[tokio::test]
async fn many_holds_are_renewed_with_one_call_and_answered_in_order() {
    let meter = Arc::new(Meter::new(Arc::new(Memory::new())));
    let (at, client) = (replica(Arc::clone(&meter) as _).await, Client::new());
    let taken = client.take_many(&at, 500).await.into_iter().rev();
    let mut claims: Vec<_> = taken
        .map(|(id, name, token)| json!({"claim": id, "name": name, "token": token}))
        .collect();
    claims[7]["token"] = json!(1_000_000);
    let renewed = client
        .ask(&at, "POST", "/v1/renewals", &json!({"claims": claims}))
        .await;
    let answers = renewed.is(200)["claims"].as_array().unwrap().clone();
    assert_eq!(answers.len(), 500);
    for (at, (claim, answer)) in claims.iter().zip(&answers).enumerate() {
        assert_eq!(claim["claim"], answer["claim"]);
        assert_eq!(answer["state"], if at == 7 { "lost" } else { "held" });
        if at != 7 {
            assert_eq!(claim["token"], answer["token"]);
            assert_eq!(answer["full_ttl"], true);
        }
    }
    assert_eq!(meter.counts().renew_calls, 1);
}

#[tokio::test]
async fn single_renewals_that_come_while_a_batch_is_out_form_the_next_one() {
    let meter = Arc::new(Meter::new(Arc::new(Memory::new())));
    let (fault, handle) = Fault::new(Arc::clone(&meter) as _);
    let (at, client) = (
        Arc::new(replica(Arc::new(fault)).await),
        Arc::new(Client::new()),
    );
    let holds = client.take_many(&at, 50).await;
    handle.next([Trouble::Hold]);
    let mut renewals = JoinSet::new();
    for (id, name, token) in holds {
        let (at, client) = (Arc::clone(&at), Arc::clone(&client));
        renewals.spawn(async move { client.renew(&at, id, &name, token).await.is(200) });
    }
    while at.service().claims() < 50 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // All have arrived. All but the first wait for their turn to be sent.
    handle.open(1);
    assert_eq!(renewals.join_all().await.len(), 50);
    assert!(meter.counts().renew_calls < 10, "{:?}", meter.counts());
    assert_eq!(meter.counts().renewed, 50);
}

#[tokio::test]
async fn what_cannot_be_renewed_together_is_refused() {
    let (at, client) = (one().await, Client::new());
    let other = Client::new();
    let one = |client: &Client| json!({"claim": client.claim(), "name": "a", "token": 1});
    let mine = one(&client);
    let many: Vec<Value> = (0..501).map(|_| one(&client)).collect();
    for (claims, status, kind) in [
        (json!([mine, mine]), 400, "invalid"),
        (json!(many), 400, "invalid"),
        (json!([mine, one(&other)]), 403, "wrong-key"),
        (
            json!([{"claim": "x", "name": "a", "token": 1}]),
            400,
            "invalid",
        ),
        (
            json!([{"claim": client.claim(), "name": "a"}]),
            400,
            "invalid",
        ),
    ] {
        let refused = client
            .ask(&at, "POST", "/v1/renewals", &json!({"claims": claims}))
            .await;
        refused.is_problem(status, kind);
    }
    let none = client
        .ask(&at, "POST", "/v1/renewals", &json!({"claims": []}))
        .await;
    assert_eq!(none.is(200), json!({"claims": []}));
}

#[tokio::test]
async fn only_a_renewal_that_says_so_shortens() {
    let (at, client) = (one().await, Client::new());
    let (id, other) = (client.claim(), client.claim());
    let token = client.take(&at, id, "a").await;
    let second = client.hold(&at, other, "b").await;
    let one = |ttl: u64, shorten: Option<bool>| {
        let mut body = json!({"name": "a", "token": token, "ttl_ms": ttl});
        if let Some(shorten) = shorten {
            body["shorten"] = json!(shorten);
        }
        body
    };
    let left = async || look(&at, "a").await["holders"][0]["ttl_left_ms"].as_u64();
    let path = format!("/v1/claims/{id}/renew");
    for (ttl, shorten, least, most) in [
        (60_000, None, 30_000, 60_000),
        (2000, None, 30_000, 60_000),
        (2000, Some(false), 30_000, 60_000),
        (20_000, Some(true), 10_000, 20_000),
    ] {
        let body = one(ttl, shorten);
        client.ask(&at, "POST", &path, &body).await.is(200);
        let left = left().await.unwrap();
        assert!(least < left && left <= most, "{body}: {left}");
    }
    // One of several renewals in a request.
    for (ttl, shorten, least, most) in [
        (5000, None, 10_000, 20_000),
        (5000, Some(true), 1000, 5000),
        (60_000, Some(true), 30_000, 60_000),
    ] {
        let mut body = one(ttl, shorten);
        body["claim"] = json!(id);
        let beside = json!({"claim": other, "name": "b", "token": second});
        let body = json!({"claims": [beside, body]});
        client.ask(&at, "POST", "/v1/renewals", &body).await.is(200);
        let left = left().await.unwrap();
        assert!(least < left && left <= most, "{body}: {left}");
    }
}
