//! A holder is stopped past its lease, a successor writes, and then the first holder continues and writes. Every kind
//! of fence must refuse that write every time. There are three processes: the sleeper, the successor, and this one with
//! the servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use fencelock::fence::http::FenceLayer;
use fencelock_testbed::{Dir, Etcd, MariaDb, Postgres, Redis, Worker, ZooKeeper};
use serde_json::{Value, json};
use tower_service::Service;

/// The rounds, with one stop each, and the locks in each round.
const ROUNDS: usize = 5;
const LOCKS: usize = 20;
/// The ttl. The sleeper is stopped for longer.
const TTL: u64 = 400;

/// A process that locks in `store` and writes to a resource.
struct Process(Worker);

impl Process {
    fn start(store: &str, kind: &str, at: &str) -> Self {
        let program = env!("CARGO_BIN_EXE_fencelock-fence-worker");
        let worker = Worker::spawn(Command::new(program).args([store, kind, at]));
        Self(worker.unwrap())
    }

    fn ask(&self, request: &str) {
        self.0.send(request).unwrap();
    }

    async fn answer(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(30), self.0.line());
        let line = line.await.expect("an answer in time");
        serde_json::from_str(&line.expect("the process lives")).unwrap()
    }

    async fn tell(&mut self, request: &str) -> Value {
        self.ask(request);
        self.answer().await
    }
}

async fn the_sleeper_is_refused_every_time(kind: &str, at: &str) {
    let dir = Dir::new("fences").unwrap();
    let store = format!("sqlite:{}", dir.join("locks.db"));
    let mut sleeper = Process::start(&store, kind, at);
    let mut successor = Process::start(&store, kind, at);
    sleeper.tell("setup").await;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..LOCKS).map(|lock| format!("{round}/{lock}")).collect();
        let names = format!("names {}", names.join(" "));
        sleeper.tell(&names).await;
        successor.tell(&names).await;
        let early = sleeper.tell(&format!("lock {TTL}")).await;
        let all = |word: &str| json!(vec![word; LOCKS]);
        assert_eq!(sleeper.tell("write early").await, all("ok"));
        successor.ask(&format!("lock {TTL}"));
        sleeper.0.process().pause().unwrap();
        // Granted when the leases of the stopped process have ended.
        let won = successor.answer().await;
        assert_eq!(successor.tell("write late").await, all("ok"));
        // The first action of the stopped process after it continues.
        sleeper.ask("write too-late");
        sleeper.0.process().resume().unwrap();
        assert_eq!(
            sleeper.answer().await,
            won,
            "refused, by the tokens that won"
        );
        refused += won.as_array().unwrap().len();
        let tokens = early
            .as_array()
            .unwrap()
            .iter()
            .zip(won.as_array().unwrap());
        for (early, won) in tokens {
            assert!(early.as_u64() < won.as_u64());
        }
        assert_eq!(successor.tell("read").await, all("late"));
        assert_eq!(successor.tell("write later").await, all("ok"));
        assert_eq!(sleeper.tell("read").await, all("later"));
    }
    assert_eq!(refused, 100);
}

#[tokio::test]
async fn file() {
    let dir = Dir::new("fenced").unwrap();
    the_sleeper_is_refused_every_time("file", dir.path().to_str().unwrap()).await;
}

#[tokio::test]
async fn quorum() {
    let dir = Dir::new("fenced").unwrap();
    the_sleeper_is_refused_every_time("quorum", dir.path().to_str().unwrap()).await;
}

#[tokio::test]
async fn sqlite() {
    let dir = Dir::new("fenced").unwrap();
    the_sleeper_is_refused_every_time("sqlite", &dir.join("ledger.db")).await;
}

#[tokio::test]
async fn postgres() {
    let server = Postgres::start().unwrap();
    the_sleeper_is_refused_every_time("postgres", &server.url()).await;
}

#[tokio::test]
async fn mysql() {
    let server = MariaDb::start().unwrap();
    the_sleeper_is_refused_every_time("mysql", &server.url()).await;
}

#[tokio::test]
async fn redis() {
    let server = Redis::start().unwrap();
    the_sleeper_is_refused_every_time("redis", &server.url()).await;
}

#[tokio::test]
async fn etcd() {
    let server = Etcd::start().unwrap();
    let address = format!("127.0.0.1:{}", server.port(0));
    the_sleeper_is_refused_every_time("etcd", &address).await;
}

#[tokio::test]
async fn zookeeper() {
    let server = ZooKeeper::start().unwrap();
    let address = format!("127.0.0.1:{}", server.port());
    the_sleeper_is_refused_every_time("zookeeper", &address).await;
}

/// The last write under each name.
type Ledger = Arc<Mutex<std::collections::HashMap<String, String>>>;

async fn write(State(ledger): State<Ledger>, Path(name): Path<String>, text: String) {
    ledger.lock().unwrap().insert(name, text);
}

async fn read(State(ledger): State<Ledger>, Path(name): Path<String>) -> String {
    let ledger = ledger.lock().unwrap();
    ledger.get(&name).cloned().unwrap_or_default()
}

#[tokio::test]
async fn http() {
    let locks = |request: &http::request::Parts| {
        let path = request.uri.path().trim_start_matches('/');
        Some(path.to_owned())
    };
    let service = Router::new()
        .route("/{*name}", get(read).put(write))
        .layer(FenceLayer::for_lock_of(locks))
        .with_state(Ledger::default());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move { axum::serve(listener, service).await });
    the_sleeper_is_refused_every_time("http", &address).await;
    serving.abort();
}

/// A fence that asks the store refuses all writes while the store does not answer.
#[tokio::test]
async fn a_store_that_does_not_answer_lets_no_holder_pass() {
    let server = Redis::start().unwrap();
    let asking = fencelock::connect(server.url()).await.unwrap();
    let holder = fencelock::connect(server.url()).await.unwrap();
    let guard = holder.lock("ledger").await.unwrap();
    let sequencer = guard.sequencer().await.unwrap();
    let mut service = Router::new()
        .route("/", get(async || "read").put(async || "written"))
        .layer(FenceLayer::for_lock("ledger").ask(asking));
    let mut put = async || {
        let request = http::Request::put("/").header("Fencelock-Sequencer", sequencer.to_string());
        let request = request.body(axum::body::Body::empty()).unwrap();
        service.call(request).await.unwrap().status()
    };
    assert_eq!(put().await, 200);
    server.pause().unwrap();
    assert_eq!(put().await, 503);
    server.resume().unwrap();
    assert_eq!(put().await, 200);
    server.kill9();
    assert_eq!(put().await, 503);
}
