//! Server-sent events, read as they arrive.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Memory;
use fencelock_server::{Config, Principal, Right, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{Client, ask, one, raw, replica_with, request};

const PATIENCE: Duration = Duration::from_secs(20);

/// An open stream.
struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    async fn open(at: &Server, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut stream = TcpStream::connect(at.address()).await.unwrap();
        let asked = request("GET", path, headers, "");
        stream.write_all(&asked).await.unwrap();
        let mut events = Self {
            stream,
            text: String::new(),
        };
        // From now on no event is missed.
        events.until("retry: 1000").await;
        let text = &events.text;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(text.contains("content-type: text/event-stream"), "{text}");
        events
    }

    async fn of_key(at: &Server, client: &Client) -> Self {
        Self::of_key_at(at, client, "/v1/events").await
    }

    async fn of_key_at(at: &Server, client: &Client, path: &str) -> Self {
        Self::open(at, path, &[("Fencelock-Key", client.key.secret())]).await
    }

    /// Reads more; false at the end.
    async fn read(&mut self) -> bool {
        let mut bytes = Vec::new();
        let read = timeout(PATIENCE, self.stream.read_buf(&mut bytes)).await;
        let count = read.expect("nothing comes").unwrap();
        self.text += &String::from_utf8(bytes).unwrap();
        count > 0
    }

    async fn until(&mut self, what: &str) {
        while !self.text.contains(what) {
            assert!(self.read().await, "no {what} in {}", self.text);
        }
    }

    /// The data of the first event with this name.
    async fn next(&mut self, event: &str) -> Value {
        let begin = format!("event: {event}\ndata: ");
        loop {
            let rest = self
                .text
                .split_once(&begin)
                .map(|(_, rest)| rest.to_owned());
            if let Some((data, rest)) = rest.as_deref().and_then(|rest| rest.split_once("\n\n")) {
                self.text = rest.to_owned();
                return serde_json::from_str(data).unwrap();
            }
            assert!(self.read().await, "no {event} in {}", self.text);
        }
    }
}

#[tokio::test]
async fn a_key_gets_events_of_its_own_claims() {
    let (at, client, other) = (one().await, Client::new(), Client::new());
    assert!(features(&at).await.contains(&json!("events")));
    let mut events = Events::of_key(&at, &client).await;
    let mut others = Events::of_key(&at, &other).await;
    let mut fewer = Events::of_key_at(&at, &client, "/v1/events?without=granted").await;
    let (first, id) = (client.claim(), client.claim());
    client.hold(&at, first, "a").await;
    client.poll(&at, id, "a", 0).await.is(202);
    client.release(&at, first, "a").await.is(200);
    let token = client.poll(&at, id, "a", 0).await.is(200)["token"].clone();
    let told = json!({"claim": id, "name": "a", "token": token});
    assert_eq!(events.next("granted").await, told);
    // A grant at once is reported in the answer only.
    assert!(!events.text.contains(&first.to_string()), "{}", events.text);
    let token = token.as_u64().unwrap();
    client.renew(&at, id, "a", token).await.is(200);
    for (how, event) in [("ask", "release-requested"), ("release", "lost")] {
        let evict = json!({"name": "a", "token": token, "how": how}).to_string();
        ask(&at, "POST", "/v1/evict", &evict).await.is(200);
        assert_eq!(events.next(event).await, told);
        fewer.until(&format!("event: {event}")).await;
        // Events of one stream come in order.
        assert!(!fewer.text.contains("granted"), "{}", fewer.text);
        assert_eq!(fewer.next(event).await, told);
    }
    // The answer to the renewal decides.
    client
        .renew(&at, id, "a", token)
        .await
        .is_problem(410, "lost");
    at.service().refuse_new();
    others.until("event: draining").await;
    assert!(!others.text.contains(&id.to_string()), "{}", others.text);
}

async fn features(at: &Server) -> Vec<Value> {
    let store = ask(at, "GET", "/v1/store", "").await;
    store.get("features").as_array().unwrap().clone()
}

#[tokio::test]
async fn the_events_of_a_lock_show_its_holder() {
    let (at, client) = (one().await, Client::new());
    let mut both = [
        Events::open(&at, "/v1/events?lock=a", &[]).await,
        Events::open(&at, "/v1/events?lock=a", &[]).await,
    ];
    let id = client.claim();
    let token = client.hold(&at, id, "a").await;
    let told = json!({"claim": id, "name": "a", "token": token});
    for events in &mut both {
        assert_eq!(events.next("leader").await, told);
    }
    client.release(&at, id, "a").await.is(200);
    for events in &mut both {
        assert!(events.next("leader").await["token"].is_null());
    }
}

#[tokio::test]
async fn draining_ends_the_streams() {
    let (at, client) = (one().await, Client::new());
    let mut events = Events::of_key(&at, &client).await;
    let drained = tokio::spawn(at.drain(PATIENCE));
    assert_eq!(events.next("draining").await, json!({}));
    // The last chunk.
    events.until("\r\n0\r\n\r\n").await;
    assert_eq!(
        timeout(Duration::from_secs(10), drained)
            .await
            .unwrap()
            .unwrap(),
        0
    );
}

#[tokio::test]
async fn streams_are_limited_and_counted_until_they_end() {
    let token = fencelock_server::BearerToken::draw().unwrap();
    let mut principal = Principal::new("p");
    principal.tokens = vec![fencelock_server::TokenHash {
        id: token.id().to_owned(),
        sha256: token.sha256(),
        not_after: None,
    }];
    principal.rights = vec![fencelock_server::Grant::on_all(&[Right::Take])];
    principal.streams = Some(1);
    let mut config = Config::default();
    config.principals = vec![principal];
    config.anonymous.clear();
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let client = Client::new();
    let bearer = format!("Bearer {}", token.secret());
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Fencelock-Key", client.key.secret()),
    ];
    let asked = request("GET", "/v1/events", &headers, "");
    let events = Events::open(&at, "/v1/events", &headers).await;
    raw(at.address(), &asked).await.is_problem(429, "quota");
    drop(events);
    let again = async {
        while raw(at.address(), &asked).await.status == 429 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, again)
        .await
        .expect("the stream still counts");
    // The principal has no right to look at the lock. Without credentials there is no stream, and none without a lock
    // or a key.
    let look = request("GET", "/v1/events?lock=a", &headers[..1], "");
    raw(at.address(), &look).await.is_problem(403, "forbidden");
    let nobody = request("GET", "/v1/events", &headers[1..], "");
    raw(at.address(), &nobody)
        .await
        .is_problem(401, "unauthorized");
    let nothing = request("GET", "/v1/events", &headers[..1], "");
    raw(at.address(), &nothing).await.is_problem(400, "invalid");
}

/// A long answer checks its right again when rights are read again.
#[tokio::test]
async fn a_stream_and_a_look_end_with_the_right() {
    let principal = |name: &str| {
        let token = fencelock_server::BearerToken::draw().unwrap();
        let mut principal = Principal::new(name);
        principal.tokens = vec![fencelock_server::TokenHash {
            id: token.id().to_owned(),
            sha256: token.sha256(),
            not_after: None,
        }];
        principal.rights = vec![fencelock_server::Grant::on_all(&[Right::Look])];
        (principal, format!("Bearer {}", token.secret()))
    };
    let ((gone, gone_bearer), (mut less, less_bearer)) = (principal("gone"), principal("less"));
    let (stays, stays_bearer) = principal("stays");
    let mut config = Config::default();
    config.principals = vec![gone, less.clone(), stays.clone()];
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let client = Client::new();
    let mut streams = Vec::new();
    let mut looks = Vec::new();
    for bearer in [&gone_bearer, &less_bearer, &stays_bearer] {
        let headers = [("Authorization", bearer.as_str())];
        streams.push(Events::open(&at, "/v1/events?lock=a", &headers).await);
        let look = "/v1/lock?name=a&seen=none&wait_ms=20000";
        let asked = request("GET", look, &headers, "");
        let address = at.address();
        looks.push(tokio::spawn(async move { raw(address, &asked).await }));
    }
    let all_wait = async {
        while at.service().polls() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, all_wait)
        .await
        .expect("the looks do not wait");
    less.rights = vec![fencelock_server::Grant {
        prefix: "b/".to_owned(),
        rights: vec![Right::Look],
    }];
    let anonymous = [fencelock_server::Grant::on_all(&[Right::Take])];
    at.service().reload(&[less, stays], &anonymous).unwrap();
    client.hold(&at, client.claim(), "a").await;
    let [gone, less, stays] = looks.try_into().unwrap();
    gone.await.unwrap().is_problem(401, "unauthorized");
    less.await.unwrap().is_problem(403, "forbidden");
    assert!(stays.await.unwrap().is(200)["token"].is_u64());
    let [mut gone, mut less, mut stays] = streams.try_into().ok().unwrap();
    for events in [&mut gone, &mut less] {
        // The last chunk of the answer.
        events.until("\r\n0\r\n\r\n").await;
        assert!(!events.text.contains("event:"), "{}", events.text);
    }
    assert!(stays.next("leader").await["token"].is_u64());
}

#[tokio::test]
async fn a_stream_says_something_now_and_then_and_ends_once() {
    let mut config = Config::default();
    config.limits.stream_beat = Duration::from_millis(100);
    config.limits.stream_longest = Duration::from_secs(4);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let mut events = Events::of_key(&at, &Client::new()).await;
    // Comments, so that each side sees that the other one is still there.
    for _ in 0..3 {
        events.until("\r\n:\n\n").await;
        events.text.clear();
    }
    // The last chunk.
    events.until("\r\n0\r\n\r\n").await;
    assert!(!events.text.contains("event:"), "{}", events.text);
}
