//! One answer of two lines: the place of a claim, and later its result.

use std::time::{Duration, Instant};

use fencelock_core::ClaimId;
use fencelock_server::Server;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{
    Client, answer, is_free, look, one, one_with_long_polls, raw, request, until, waiters,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// An answer that is read line by line.
struct Lines(BufReader<TcpStream>);

fn asked(client: &Client, id: ClaimId, body: &Value) -> Vec<u8> {
    let headers = [
        ("Fencelock-Key", client.key.secret()),
        ("Accept", "application/x-ndjson"),
    ];
    let path = format!("/v1/claims/{id}");
    request("PUT", &path, &headers, &body.to_string())
}

/// Media types are compared without case, and may be one of several.
#[tokio::test]
async fn lines_are_asked_for_in_any_form_of_the_header() {
    let (at, client) = (one().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let body = json!({"name": "a", "queue": true, "wait_ms": 50}).to_string();
    for (accept, lines) in [
        ("application/json, application/x-ndjson;q=0.9", true),
        ("APPLICATION/X-NDJSON", true),
        ("application/json, */*", false),
    ] {
        let headers = [("Fencelock-Key", client.key.secret()), ("Accept", accept)];
        let path = format!("/v1/claims/{}", client.claim());
        let asked = request("PUT", &path, &headers, &body);
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        stream.write_all(&asked).await.unwrap();
        let (mut stream, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            stream.read_line(&mut head).await.unwrap();
        }
        let has = head.contains("content-type: application/x-ndjson");
        assert_eq!(has, lines, "{accept}: {head}");
    }
}

fn waits(name: &str, wait_ms: u64) -> Value {
    json!({"name": name, "queue": true, "wait_ms": wait_ms})
}

impl Lines {
    /// Requests a lock, and reads the first line.
    async fn open(at: &Server, client: &Client, id: ClaimId) -> (Self, Value) {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        let asked = asked(client, id, &waits("a", 60_000));
        stream.write_all(&asked).await.unwrap();
        let mut lines = Self(BufReader::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            lines.0.read_line(&mut head).await.unwrap();
        }
        assert!(head.starts_with("HTTP/1.1 202 "), "{head}");
        assert!(
            head.contains("content-type: application/x-ndjson"),
            "{head}"
        );
        let first = lines.next().await.unwrap();
        (lines, first)
    }

    /// The next chunk, which is a line; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        let next = async {
            let mut size = String::new();
            self.0.read_line(&mut size).await.unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            self.0.read_exact(&mut chunk).await.unwrap();
            (size > 0).then(|| serde_json::from_slice(&chunk).unwrap())
        };
        timeout(PATIENCE, next).await.expect("no line comes")
    }
}

#[tokio::test]
async fn the_place_comes_at_once_and_the_grant_later() {
    let (at, client) = (one().await, Client::new());
    let (holder, id) = (client.claim(), client.claim());
    let before = client.hold(&at, holder, "a").await;
    let begun = Instant::now();
    let (mut lines, first) = Lines::open(&at, &client, id).await;
    assert_eq!(
        (&first["state"], &first["ahead"]),
        (&json!("waiting"), &json!(0))
    );
    assert_eq!(waiters(&look(&at, "a").await), 1);
    client.release(&at, holder, "a").await.is(200);
    let second = lines.next().await.unwrap();
    assert_eq!(
        (&second["status"], &second["claim"]),
        (&json!(200), &json!(id))
    );
    let body = &second["body"];
    assert_eq!(body["state"], "held");
    assert!(body["token"].as_u64().unwrap() > before, "{body}");
    // A window from the grant on, given as a time since the request was sent.
    let most = Duration::from_millis(2001) + begun.elapsed();
    let lease = Duration::from_millis(body["lease_ms_since_sent"].as_u64().unwrap());
    assert!(lease <= most, "{body}");
    assert_eq!(lines.next().await, None);
    client.release(&at, id, "a").await.is(200);
    assert!(is_free(&look(&at, "a").await));
    assert_eq!(at.service().claims(), 0);
}

#[tokio::test]
async fn the_second_line_says_so_when_the_wait_ends_without_a_grant() {
    let (at, client) = (one().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let id = client.claim();
    let waiting = json!((202, "waiting"));
    let said = |line: Value| json!((&line["status"], &line["body"]["state"]));
    // First case: the wait is over.
    let (mut lines, _) = Lines::open(&at, &client, id).await;
    assert_eq!(said(lines.next().await.unwrap()), waiting);
    assert_eq!(lines.next().await, None);
    // Second case: a newer request of the claim.
    let (mut lines, _) = Lines::open(&at, &client, id).await;
    client.poll(&at, id, "a", 0).await.is(202);
    assert_eq!(said(lines.next().await.unwrap()), waiting);
    // Third case: its release.
    let (mut lines, _) = Lines::open(&at, &client, id).await;
    assert_eq!(waiters(&look(&at, "a").await), 1);
    let released = client.release(&at, id, "a").await;
    assert_eq!(released.get("released"), "left-queue");
    assert_eq!(said(lines.next().await.unwrap()), waiting);
    assert_eq!(waiters(&look(&at, "a").await), 0);
    // Fourth case: the end of the replica.
    let (mut lines, _) = Lines::open(&at, &client, client.claim()).await;
    at.service().refuse_new();
    assert_eq!(said(lines.next().await.unwrap()), waiting);
}

#[tokio::test]
async fn a_client_that_leaves_after_the_first_line_no_longer_waits() {
    let (at, client) = (one_with_long_polls().await, Client::new());
    client.hold(&at, client.claim(), "a").await;
    let (lines, _) = Lines::open(&at, &client, client.claim()).await;
    assert_eq!(at.service().polls(), 1);
    drop(lines);
    until(&at, "a", "without a waiter", |lock| waiters(lock) == 0).await;
    assert_eq!(at.service().polls(), 0);
}

#[tokio::test]
async fn a_request_that_needs_no_second_line_gets_a_single_answer() {
    let (at, client) = (one().await, Client::new());
    let ask = async |id: ClaimId, body: Value| raw(at.address(), &asked(&client, id, &body)).await;
    let id = client.claim();
    let held = ask(id, waits("a", 60_000)).await;
    assert_eq!(held.is(200)["state"], "held");
    assert_eq!(held.header("content-type"), Some("application/json"));
    let token = held.number("token");
    client.renew(&at, id, "a", token).await.is(200);
    let waiting = ask(client.claim(), waits("a", 0)).await;
    assert_eq!(waiting.is(202)["state"], "waiting");
    let no_queue = json!({"name": "a", "wait_ms": 1000});
    ask(client.claim(), no_queue).await.is_problem(409, "held");
    let wrong = Client::new().claim();
    ask(wrong, waits("a", 1000))
        .await
        .is_problem(403, "wrong-key");
    // The connection can be used again after the two lines.
    let mut stream = TcpStream::connect(at.address()).await.unwrap();
    for _ in 0..2 {
        let asked = asked(&client, client.claim(), &waits("a", 50));
        stream.write_all(&asked).await.unwrap();
        let said = answer(&mut stream).await;
        assert_eq!((said.status, said.text.lines().count()), (202, 2));
    }
}
