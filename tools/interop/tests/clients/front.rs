//! A faulty way to a replica: it reads each request, and passes it on, loses or holds its answer, or answers in the replica's
//! place.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fencelock_testbed::Port;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::service::Replica;

/// What happens to one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// It is served.
    Pass,
    /// It is served by the replica at this port, as behind a balancer.
    PassTo(u16),
    /// It is served, and the answer says that it is from the replica with this id.
    PassAs(String),
    /// It is served, and if the claim waits, the answer says that the store grants nothing at this time.
    PassStalled,
    /// It is served, and its answer is lost: the connection stays open and silent.
    LoseAnswer,
    /// It is served, and its answer comes after the notification.
    HoldAnswer(Arc<Notify>),
    /// The replica does not get it; this is the answer.
    Answer(String),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Instant,
    /// The port of the front to which it came.
    pub(crate) port: u16,
    pub(crate) text: String,
}

impl Request {
    /// The method and the path.
    pub(crate) fn line(&self) -> &str {
        self.text.split(" HTTP/").next().unwrap_or_default()
    }

    pub(crate) fn asks_for_store(&self) -> bool {
        self.line() == "GET /v1/store"
    }

    pub(crate) fn is_put(&self) -> bool {
        self.text.starts_with("PUT ")
    }

    pub(crate) fn is_release(&self) -> bool {
        self.line().ends_with("/release")
    }

    pub(crate) fn is_renewal(&self) -> bool {
        self.line().ends_with("/renew")
    }

    /// The claim's id.
    pub(crate) fn claim(&self) -> &str {
        self.line().split('/').nth(3).unwrap_or_default()
    }
}

type Script = dyn FnMut(&Request) -> Act + Send;

/// What the fronts of one test share.
#[derive(Clone)]
pub(crate) struct Fronts {
    script: Arc<Mutex<Box<Script>>>,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Fronts {
    /// What happens to each request, whichever front it comes to.
    pub(crate) fn new(script: impl FnMut(&Request) -> Act + Send + 'static) -> Self {
        Self {
            script: Arc::new(Mutex::new(Box::new(script))),
            requests: Arc::default(),
        }
    }

    /// Changes what happens from now on.
    pub(crate) fn set(&self, script: impl FnMut(&Request) -> Act + Send + 'static) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(script);
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Listens before the replica at the port `target`, until the runtime of the test ends.
    pub(crate) async fn before(&self, target: u16) -> Port {
        let port = Port::free().expect("a port");
        let listener = TcpListener::bind(port.address()).await.expect("it listens");
        let (this, number) = (self.clone(), port.number());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let this = this.clone();
                tokio::spawn(async move { this.connection(client, number, target).await });
            }
        });
        port
    }

    /// A front before each of these replicas, in their order.
    pub(crate) async fn before_each(&self, replicas: &[Replica]) -> Vec<Port> {
        let mut ports = Vec::new();
        for replica in replicas {
            ports.push(self.before(replica.port()).await);
        }
        ports
    }

    async fn connection(self, mut client: TcpStream, port: u16, target: u16) {
        while let Some(text) = message(&mut client).await {
            let request = Request {
                at: Instant::now(),
                port,
                text,
            };
            let act = {
                let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
                let requests = self.requests.lock();
                requests
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(request.clone());
                script(&request)
            };
            let answer = match act {
                Act::Answer(answer) => answer,
                act => {
                    let target = match act {
                        Act::PassTo(other) => other,
                        _ => target,
                    };
                    let Some(mut answer) = forward(target, &request.text).await else {
                        return;
                    };
                    match act {
                        Act::PassAs(id) => answer = from_replica(&answer, &id),
                        Act::PassStalled => answer = stalled(&answer),
                        Act::LoseAnswer => {
                            // Until the client gives up.
                            drop(client.read(&mut [0]).await);
                            return;
                        }
                        Act::HoldAnswer(until) => until.notified().await,
                        _ => {}
                    }
                    answer
                }
            };
            // Fails if the client has given up.
            if client.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// Sends a request to the replica; its answer.
pub(crate) async fn forward(target: u16, request: &str) -> Option<String> {
    let mut replica = TcpStream::connect(("127.0.0.1", target)).await.ok()?;
    replica.write_all(request.as_bytes()).await.ok()?;
    message(&mut replica).await
}

/// The answer, as if the replica with this id gave it.
fn from_replica(answer: &str, id: &str) -> String {
    let name = "fencelock-replica: ";
    let (before, rest) = answer.split_once(name).expect("it names its replica");
    format!("{before}{name}{id}{}", &rest[id.len()..])
}

/// The answer to a claim that waits, as if the store granted nothing at this time.
fn stalled(answer: &str) -> String {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let waiting = r#""state":"waiting""#;
    let stalled = body.replace(waiting, &format!(r#"{waiting},"stalled":"it rests""#));
    let length = |body: &str| format!("content-length: {}", body.len());
    format!(
        "{}\r\n\r\n{stalled}",
        head.replace(&length(body), &length(&stalled))
    )
}

/// One request or answer with its body; none at the end of the connection.
async fn message(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                let is_length = name.eq_ignore_ascii_case("content-length");
                is_length.then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Some(text.into_owned());
            }
        }
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).await.ok()?;
        if count == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// An answer with a problem.
pub(crate) fn problem(status: u16, kind: &str, more: &str, headers: &str) -> String {
    let body = format!(
        r#"{{"type":"urn:fencelock:{kind}","title":"{kind}","status":{status},"detail":"the test says so"{more}}}"#
    );
    answer(status, "application/problem+json", headers, &body)
}

/// An answer.
pub(crate) fn answer(status: u16, kind: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}
