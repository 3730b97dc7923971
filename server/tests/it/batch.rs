//! Several takes and releases in one request.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_core::layers::{Fault, Trouble};
use fencelock_server::{Config, Grant, Right, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{Client, is_free, look, one, replica, replica_with, until, waiters};

fn take(claim: impl ToString, name: &str) -> Value {
    json!({"claim": claim.to_string(), "take": {"name": name}})
}

fn release(claim: impl ToString, name: &str) -> Value {
    json!({"claim": claim.to_string(), "release": {"name": name}})
}

fn problem(answer: &Value) -> &str {
    answer["body"]["type"].as_str().unwrap()
}

#[tokio::test]
async fn each_item_is_served_like_a_single_request_even_if_repeated() {
    let (at, client) = (one().await, Client::new());
    let ids: Vec<_> = (0..20).map(|_| client.claim()).collect();
    let named = |make: fn(String, &str) -> Value| -> Vec<Value> {
        let all = ids.iter().enumerate();
        all.map(|(number, id)| make(id.to_string(), &format!("lock/{number}")))
            .collect()
    };
    let takes = named(take);
    let taken = client.batch(&at, &takes).await;
    let again = client.batch(&at, &takes).await;
    for (number, id) in ids.iter().enumerate() {
        let (first, second) = (&taken[number], &again[number]);
        assert_eq!(
            (&first["status"], &first["body"]["state"]),
            (&json!(200), &json!("held"))
        );
        assert_eq!(first["body"]["claim"], id.to_string());
        assert_eq!(first["body"]["token"], second["body"]["token"]);
    }
    // A single request gets the same answer.
    let token = client.take(&at, ids[0], "lock/0").await;
    assert_eq!(taken[0]["body"]["token"], token);
    let releases = named(release);
    for (turn, outcome) in [(0, "released"), (1, "already-expired")] {
        for answer in client.batch(&at, &releases).await {
            assert_eq!(answer["status"], 200, "turn {turn}: {answer}");
            assert_eq!(answer["body"]["released"], outcome, "turn {turn}: {answer}");
        }
    }
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn the_result_of_an_item_is_only_in_its_own_answer() {
    let (at, client, other) = (one().await, Client::new(), Client::new());
    other.hold(&at, other.claim(), "busy").await;
    let (free, refused, waits, short, left) = (
        client.claim(),
        client.claim(),
        client.claim(),
        client.claim(),
        client.claim(),
    );
    let mut queued = take(waits, "busy");
    queued["take"]["queue"] = json!(true);
    let mut brief = take(short, "brief");
    brief["take"]["ttl_ms"] = json!(1);
    let asked = [
        take(free, "free"),
        take(refused, "busy"),
        queued,
        brief,
        release(left, "busy"),
    ];
    let answers = client.batch(&at, &asked).await;
    let status = |at: usize| answers[at]["status"].as_u64().unwrap();
    assert_eq!([0, 1, 2, 3, 4].map(status), [200, 409, 202, 422, 200]);
    assert_eq!(answers[0]["body"]["state"], "held");
    assert_eq!(problem(&answers[1]), "urn:fencelock:held");
    assert_eq!(answers[1]["body"]["name"], "busy");
    assert_eq!(answers[2]["body"]["state"], "waiting");
    assert_eq!(problem(&answers[3]), "urn:fencelock:unsupported");
    assert_eq!(answers[4]["body"]["released"], "not-owner");
    assert_eq!(waiters(&look(&at, "busy").await), 1);
    let outcome = client.batch(&at, &[release(waits, "busy")]).await;
    assert_eq!(outcome[0]["body"]["released"], "left-queue");
}

#[tokio::test]
async fn rights_and_quotas_count_for_each() {
    let mut config = Config::default();
    let rights = |prefix: &str, rights: &[Right]| Grant {
        prefix: prefix.to_owned(),
        rights: rights.to_vec(),
    };
    config.anonymous = vec![rights("a/", Right::ALL)];
    let (at, client) = (
        replica_with(Arc::new(Memory::new()), config).await,
        Client::new(),
    );
    let asked = [
        take(client.claim(), "a/1"),
        take(client.claim(), "b/1"),
        release(client.claim(), "b/1"),
    ];
    let answers = client.batch(&at, &asked).await;
    assert_eq!(answers[0]["status"], 200);
    for answer in &answers[1..] {
        assert_eq!(
            (&answer["status"], problem(answer)),
            (&json!(401), "urn:fencelock:unauthorized")
        );
    }
}

#[tokio::test]
async fn an_invalid_batch_is_refused_as_a_whole() {
    let (at, client) = (one().await, Client::new());
    let good = take(client.claim(), "a");
    let id = client.claim();
    let mut waits = take(id, "b");
    waits["take"]["wait_ms"] = json!(1);
    let both = json!({"claim": id, "take": {"name": "b"}, "release": {"name": "b"}});
    let many: Vec<Value> = (0..129).map(|_| take(client.claim(), "a")).collect();
    for (claims, status, kind) in [
        (json!([good, good]), 400, "invalid"),
        (json!(many), 400, "invalid"),
        (json!([good, waits]), 400, "invalid"),
        (json!([good, both]), 400, "invalid"),
        (json!([good, {"claim": id}]), 400, "invalid"),
        (
            json!([good, {"claim": id, "take": {"nam": "b"}}]),
            400,
            "invalid",
        ),
        (
            json!([good, take(Client::new().claim(), "b")]),
            403,
            "wrong-key",
        ),
    ] {
        let body = json!({ "claims": claims });
        let refused = client.ask(&at, "POST", "/v1/batch", &body).await;
        refused.is_problem(status, kind);
    }
    let long = json!({"claims": [], "x": " ".repeat(1 << 20)});
    let refused = client.ask(&at, "POST", "/v1/batch", &long).await;
    refused.is_problem(413, "too-large");
    assert!(is_free(&look(&at, "a").await));
    assert!(client.batch(&at, &[]).await.is_empty());
}

/// Sends a batch, and leaves its answers unread.
async fn begin(at: &Server, client: &Client, asked: &[Value]) -> TcpStream {
    let body = json!({ "claims": asked });
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    stream
        .write_all(&client.bytes("POST", "/v1/batch", &body))
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn an_item_on_a_silent_store_delays_no_other() {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let (at, client) = (replica(Arc::new(fault)).await, Client::new());
    let asked = [
        take(client.claim(), "silent"),
        take(client.claim(), "b"),
        take(client.claim(), "c"),
    ];
    handle.next([Trouble::Hold]);
    let mut stream = begin(&at, &client, &asked).await;
    let mut read = Vec::new();
    let answered = |read: &[u8]| {
        String::from_utf8_lossy(read)
            .matches("\"status\":200")
            .count()
    };
    let others = async {
        while answered(&read) < 2 {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
        }
    };
    let others = tokio::time::timeout(Duration::from_secs(20), others);
    others.await.expect("the silent store delays the others");
    let silent = asked[0]["claim"].as_str().unwrap();
    assert!(!String::from_utf8_lossy(&read).contains(silent));
    handle.open(1);
    while answered(&read) < 3 {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    assert!(String::from_utf8_lossy(&read).contains(silent));
}

#[tokio::test]
async fn calls_go_on_when_their_client_is_gone() {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let (at, client) = (replica(Arc::new(fault)).await, Client::new());
    let asked = [take(client.claim(), "a"), take(client.claim(), "b")];
    handle.next([Trouble::Hold]);
    let stream = begin(&at, &client, &asked).await;
    until(&at, "b", "held", |lock| !is_free(lock)).await;
    assert!(is_free(&look(&at, "a").await));
    drop(stream);
    while at.connections() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    handle.open(1);
    until(&at, "a", "held", |lock| !is_free(lock)).await;
}

#[tokio::test]
async fn an_answer_of_the_store_that_is_lost_is_unavailable_for_one() {
    let (fault, handle) = Fault::new(Arc::new(Memory::new()));
    let (at, client) = (replica(Arc::new(fault)).await, Client::new());
    let asked = [take(client.claim(), "a"), take(client.claim(), "b")];
    handle.next([Trouble::LoseReply]);
    let answers = client.batch(&at, &asked).await;
    assert_eq!(answers[0]["status"], 503);
    assert_eq!(
        (problem(&answers[0]), &answers[0]["retry_after_s"]),
        ("urn:fencelock:unavailable", &json!(1))
    );
    assert_eq!(answers[1]["status"], 200);
    // The request took effect. The next request finds that.
    let answers = client.batch(&at, &asked).await;
    assert_eq!(
        (&answers[0]["status"], &answers[1]["status"]),
        (&json!(200), &json!(200))
    );
}
