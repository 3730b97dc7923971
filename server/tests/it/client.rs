//! A client that writes and reads HTTP/1.1 itself, so that a test can also send what no library would send.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Promises, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{ClaimId, ClaimIds, Engine, Memory, Result};
use fencelock_server::{Config, Server, Service};
use fencelock_wire::ClaimKey;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1);
        lines.find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub(crate) fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// A member of the body.
    #[track_caller]
    pub(crate) fn get(&self, member: &str) -> Value {
        let body = self.body();
        let found = body.get(member).cloned();
        found.unwrap_or_else(|| panic!("no {member} in {self:?}"))
    }

    pub(crate) fn number(&self, member: &str) -> u64 {
        self.get(member).as_u64().unwrap()
    }

    /// The body if the status is this.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.body()
    }

    /// The JSON values of its lines, if the status is 200.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/x-ndjson"));
        self.has_common_headers();
        let lines = self.text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }

    /// It is this problem, with all required members.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, kind: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(
            self.get("type"),
            format!("urn:fencelock:{kind}"),
            "{self:?}"
        );
        assert_eq!(self.get("status"), u64::from(status));
        assert!(!self.get("title").as_str().unwrap().is_empty());
        assert!(!self.get("detail").as_str().unwrap().is_empty());
        self.has_common_headers();
    }

    #[track_caller]
    pub(crate) fn has_common_headers(&self) {
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self:?}");
        let replica = self.header("fencelock-replica").unwrap();
        assert_eq!(replica.len(), 16, "{self:?}");
    }
}

/// Sends bytes, and reads an answer.
pub(crate) async fn raw(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    answer(&mut stream).await
}

/// Reads one answer of a connection.
pub(crate) async fn answer(stream: &mut TcpStream) -> Answer {
    let read = tokio::time::timeout(PATIENCE, read(stream)).await;
    read.expect("no answer in time")
}

async fn read(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "{bytes:?}");
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut body = bytes.split_off(end);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer {
        status,
        head,
        text: String::new(),
    };
    let is_lines = answer.header("content-type") == Some("application/x-ndjson");
    // Events also come in chunks, and do not end.
    if is_lines && answer.header("transfer-encoding") == Some("chunked") {
        answer.text = chunks(stream, body).await;
        return answer;
    }
    let length = answer.header("content-length");
    let length: usize = length.unwrap_or("0").parse().unwrap();
    while body.len() < length {
        assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0);
    }
    answer.text = String::from_utf8(body).unwrap();
    answer
}

/// Reads a body in chunks to its end.
async fn chunks(stream: &mut TcpStream, mut read: Vec<u8>) -> String {
    let mut body = Vec::new();
    loop {
        let Some(end) = read.windows(2).position(|two| two == b"\r\n") else {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{read:?}");
            continue;
        };
        let size = std::str::from_utf8(&read[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        while read.len() < end + size + 4 {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "{read:?}");
        }
        body.extend_from_slice(&read[end + 2..end + 2 + size]);
        read.drain(..end + size + 4);
        if size == 0 {
            return String::from_utf8(body).unwrap();
        }
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!(
            "Content-Type: application/json\r\nContent-Length: {}\r\n",
            body.len()
        );
    }
    format!("{text}\r\n{body}").into_bytes()
}

/// A client with its own key, with which it makes claims.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) key: ClaimKey,
    ids: ClaimIds,
}

impl Client {
    pub(crate) fn new() -> Self {
        let key = ClaimKey::draw().unwrap();
        let ids = ClaimIds::with(key.claim_ids());
        Self { key, ids }
    }

    pub(crate) fn claim(&self) -> ClaimId {
        self.ids.next()
    }

    /// A request about claims of this key.
    pub(crate) async fn ask(&self, at: &Server, method: &str, path: &str, body: &Value) -> Answer {
        raw(at.address(), &self.bytes(method, path, body)).await
    }

    pub(crate) fn bytes(&self, method: &str, path: &str, body: &Value) -> Vec<u8> {
        let headers = [("Fencelock-Key", self.key.secret())];
        request(method, path, &headers, &body.to_string())
    }

    pub(crate) async fn put(&self, at: &Server, id: ClaimId, body: Value) -> Answer {
        self.ask(at, "PUT", &format!("/v1/claims/{id}"), &body)
            .await
    }

    /// Takes a lock that is free, and returns the token.
    pub(crate) async fn take(&self, at: &Server, id: ClaimId, name: &str) -> u64 {
        let taken = self.put(at, id, json!({"name": name})).await;
        assert_eq!(taken.is(200)["state"], "held");
        taken.number("token")
    }

    /// Takes a lock that is free, for the whole usual ttl, and returns the token. The first grant alone is short.
    pub(crate) async fn hold(&self, at: &Server, id: ClaimId, name: &str) -> u64 {
        let token = self.take(at, id, name).await;
        self.renew(at, id, name, token).await.is(200);
        token
    }

    /// Waits for a lock: one poll.
    pub(crate) async fn poll(&self, at: &Server, id: ClaimId, name: &str, wait_ms: u64) -> Answer {
        let body = json!({"name": name, "queue": true, "wait_ms": wait_ms});
        self.put(at, id, body).await
    }

    /// Takes the free locks `lock/0`, `lock/1` and so on, in few requests: on some stores a first grant is short. Returns the
    /// claims with their names and tokens.
    pub(crate) async fn take_many(&self, at: &Server, count: usize) -> Vec<(ClaimId, String, u64)> {
        let mut holds = Vec::new();
        let names: Vec<_> = (0..count).map(|number| format!("lock/{number}")).collect();
        for names in names.chunks(100) {
            let claims: Vec<_> = names
                .iter()
                .map(|name| (self.claim(), name.clone()))
                .collect();
            let one = |(id, name): &(ClaimId, String)| json!({"claim": id, "take": {"name": name}});
            let asked: Vec<_> = claims.iter().map(one).collect();
            let answers = self.batch(at, &asked).await;
            for ((id, name), answer) in claims.into_iter().zip(answers) {
                let token = answer["body"]["token"].as_u64().unwrap();
                holds.push((id, name, token));
            }
        }
        holds
    }

    /// Several requests in one. Returns the answers in the order of these requests.
    pub(crate) async fn batch(&self, at: &Server, claims: &[Value]) -> Vec<Value> {
        let body = json!({ "claims": claims });
        let answer = self.ask(at, "POST", "/v1/batch", &body).await;
        in_order(claims, &answer.lines())
    }

    pub(crate) async fn renew(&self, at: &Server, id: ClaimId, name: &str, token: u64) -> Answer {
        let path = format!("/v1/claims/{id}/renew");
        let body = json!({"name": name, "token": token});
        self.ask(at, "POST", &path, &body).await
    }

    pub(crate) async fn release(&self, at: &Server, id: ClaimId, name: &str) -> Answer {
        let path = format!("/v1/claims/{id}/release");
        self.ask(at, "POST", &path, &json!({"name": name})).await
    }
}

/// The answers to a batch in the order of its requests.
#[track_caller]
pub(crate) fn in_order(claims: &[Value], answers: &[Value]) -> Vec<Value> {
    assert_eq!(answers.len(), claims.len(), "{answers:?}");
    let of = |asked: &Value| {
        let mut answers = answers.iter();
        let found = answers.find(|answer| answer["claim"] == asked["claim"]);
        found.expect("an answer to each").clone()
    };
    claims.iter().map(of).collect()
}

/// A request without a key.
pub(crate) async fn ask(at: &Server, method: &str, path: &str, body: &str) -> Answer {
    raw(at.address(), &request(method, path, &[], body)).await
}

/// A lock as other clients see it.
pub(crate) async fn look(at: &Server, name: &str) -> Value {
    ask(at, "GET", &format!("/v1/lock?name={name}"), "")
        .await
        .is(200)
}

/// Waits until a condition is true of a lock.
pub(crate) async fn until(at: &Server, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
    let seen = async {
        while !is(&look(at, name).await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let seen = tokio::time::timeout(PATIENCE, seen).await;
    assert!(
        seen.is_ok(),
        "lock {name}: never {what}: {}",
        look(at, name).await
    );
}

pub(crate) fn waiters(lock: &Value) -> usize {
    lock["waiters"].as_array().unwrap().len()
}

pub(crate) fn is_free(lock: &Value) -> bool {
    lock["token"].is_null()
}

/// A replica of this store.
pub(crate) async fn replica(engine: Arc<dyn Engine>) -> Server {
    replica_with(engine, Config::trusting()).await
}

pub(crate) async fn replica_with(engine: Arc<dyn Engine>, config: Config) -> Server {
    let service = Service::new(engine, config).unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    Server::start(address, service).await.unwrap()
}

/// One replica on a store in memory.
pub(crate) async fn one() -> Server {
    replica(Arc::new(Memory::new())).await
}

/// A store in memory whose polls last five seconds. So a push differs from the end of a poll also on a machine that stands
/// still for a moment.
#[derive(Debug)]
pub(crate) struct LongPolls {
    store: Memory,
    promises: Promises,
}

impl LongPolls {
    const POLL: Duration = Duration::from_secs(5);

    pub(crate) fn new(store: Memory) -> Self {
        let mut promises = Engine::promises(&store).clone();
        promises.claim_window = Self::POLL * 2;
        Self { store, promises }
    }
}

#[async_trait]
impl Layer for LongPolls {
    fn below(&self) -> &dyn Engine {
        &self.store
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }

    /// No waiter is placed again while it polls.
    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let mut standing = self.store.place(claim).await?;
        if let Standing::Waiting(place) = &mut standing {
            place.recheck = Engine::clock(&self.store).now() + Self::POLL * 2;
        }
        Ok(standing)
    }
}

impl fmt::Display for LongPolls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// Shorter than a poll there, and than a waiter's place in memory, which lasts four seconds.
pub(crate) const PUSHED: Duration = Duration::from_secs(3);

/// One replica with long polls.
pub(crate) async fn one_with_long_polls() -> Server {
    replica(Arc::new(LongPolls::new(Memory::new()))).await
}

/// Two replicas on the same store in memory.
pub(crate) async fn two() -> (Server, Server) {
    let memory = Memory::new();
    let another = replica(Arc::new(memory.another())).await;
    (replica(Arc::new(memory)).await, another)
}
