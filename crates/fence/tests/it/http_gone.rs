//! The fence before an HTTP service on loopback, whose clients disconnect before the answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::routing::put;
use fencelock_fence::http::FenceLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::exclusive;

/// A service whose handlers report that they have begun, and then wait until the test lets them continue.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    pub(crate) begun: Arc<Semaphore>,
    pub(crate) go_on: Arc<Semaphore>,
    ended: Arc<Semaphore>,
    pub(crate) address: String,
}

impl Service {
    pub(crate) fn log(&self, what: String) {
        self.log.lock().unwrap().push(what);
    }

    pub(crate) fn logged(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    async fn handle(State(this): State<Self>, body: Bytes) -> String {
        let body = String::from_utf8(body.to_vec()).unwrap();
        this.log(format!("{body} begins"));
        this.begun.add_permits(1);
        wait(&this.go_on).await;
        assert!(body != "panic", "as the test has it");
        this.log(format!("{body} writes"));
        this.ended.add_permits(1);
        format!("{body} was written")
    }

    /// Serves behind the layer, with a timeout outside the layer if one is given.
    pub(crate) async fn start(layer: FenceLayer, timeout: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let this = Self {
            log: Arc::default(),
            begun: Arc::new(Semaphore::new(0)),
            go_on: Arc::new(Semaphore::new(0)),
            ended: Arc::new(Semaphore::new(0)),
            address: listener.local_addr().unwrap().to_string(),
        };
        let routes = put(Self::handle).post(Self::handle);
        let mut service = Router::new()
            .route("/ledger", routes.with_state(this.clone()))
            .layer(layer);
        if let Some(limit) = timeout {
            let give_up = move |request: Request, next: Next| async move {
                let answer = tokio::time::timeout(limit, next.run(request)).await;
                answer.unwrap_or_else(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
            };
            service = service.layer(axum::middleware::from_fn(give_up));
        }
        tokio::spawn(async move { axum::serve(listener, service).await });
        this
    }

    /// Sends a request without reading the answer.
    pub(crate) async fn send(&self, token: u64, more: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let (sequencer, length) = (exclusive(token), body.len());
        let request = format!(
            "PUT /ledger HTTP/1.1\r\nHost: ledger\r\nConnection: close\r\nFencelock-Sequencer: {sequencer}\r\n\
             {more}Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

pub(crate) async fn wait(semaphore: &Semaphore) {
    let limit = Duration::from_secs(30);
    let permit = tokio::time::timeout(limit, semaphore.acquire()).await;
    permit.unwrap().unwrap().forget();
}

pub(crate) async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    let limit = Duration::from_secs(30);
    let read = tokio::time::timeout(limit, stream.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    answer.to_lowercase()
}

fn layer() -> FenceLayer {
    FenceLayer::for_lock(exclusive(1).name.as_str())
}

/// While a handler runs, the next holder gets 503, and never overtakes it.
async fn is_not_overtaken(service: &Service) {
    let next = answer(service.send(34, "", "next").await).await;
    assert!(next.starts_with("http/1.1 503 "), "{next}");
    assert!(next.contains("\r\nretry-after: 1\r\n"), "{next}");
    assert!(next.contains("urn:fencelock:busy"), "{next}");
    assert_eq!(service.logged(), ["first begins"]);
    service.go_on.add_permits(2);
    wait(&service.ended).await;
    let next = answer(service.send(34, "", "next").await).await;
    assert!(next.starts_with("http/1.1 200 "), "{next}");
    let all = ["first begins", "first writes", "next begins", "next writes"];
    assert_eq!(service.logged(), all);
}

#[tokio::test]
async fn a_disconnected_client_lets_no_holder_overtake_its_write() {
    let service = Service::start(layer().wait_at_most(Duration::from_millis(300)), None).await;
    let first = service.send(33, "", "first").await;
    wait(&service.begun).await;
    drop(first);
    is_not_overtaken(&service).await;
}

#[tokio::test]
async fn a_timeout_outside_lets_no_holder_overtake_the_write() {
    let layer = layer().wait_at_most(Duration::from_millis(300));
    let service = Service::start(layer, Some(Duration::from_secs(3))).await;
    let first = service.send(33, "", "first").await;
    wait(&service.begun).await;
    let told = answer(first).await;
    assert!(told.starts_with("http/1.1 504 "), "{told}");
    is_not_overtaken(&service).await;
}

/// The next holder waits for the handler of a disconnected client, if it ends in time.
#[tokio::test]
async fn the_next_holder_waits_for_the_handler_of_a_disconnected_client() {
    let service = Service::start(layer(), None).await;
    let first = service.send(33, "", "first").await;
    wait(&service.begun).await;
    drop(first);
    let next = service.send(34, "", "next").await;
    // Long enough for the server to notice the disconnection.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(service.logged(), ["first begins"]);
    service.go_on.add_permits(2);
    let next = answer(next).await;
    assert!(next.starts_with("http/1.1 200 "), "{next}");
    let all = ["first begins", "first writes", "next begins", "next writes"];
    assert_eq!(service.logged(), all);
}

#[tokio::test]
async fn a_handler_that_panics_opens_the_gate() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(2);
    let told = answer(service.send(33, "", "panic").await).await;
    assert!(told.starts_with("http/1.1 500 "), "{told}");
    assert!(told.contains("urn:fencelock:failed"), "{told}");
    let next = answer(service.send(34, "", "next").await).await;
    assert!(next.starts_with("http/1.1 200 "), "{next}");
}

/// The handler waits for the body of a disconnected client: the body ends with an error, the handler ends, and the gate
/// opens.
#[tokio::test]
async fn an_incomplete_body_ends_its_handler() {
    let service = Service::start(layer(), None).await;
    service.go_on.add_permits(1);
    let mut first = TcpStream::connect(&service.address).await.unwrap();
    let request = format!(
        "PUT /ledger HTTP/1.1\r\nHost: ledger\r\nFencelock-Sequencer: {}\r\nContent-Length: 100\r\n\r\nbroken",
        exclusive(33)
    );
    first.write_all(request.as_bytes()).await.unwrap();
    let next = service.send(34, "", "next").await;
    drop(first);
    let next = answer(next).await;
    assert!(next.starts_with("http/1.1 200 "), "{next}");
    assert_eq!(service.logged(), ["next begins", "next writes"]);
}
