//! HTTP/2, written and read by hand, so that a test can also do what no library would do.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{Engine, Error, Memory};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use fencelock_server::Config;

use crate::client::{Client, one, replica, replica_with};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
/// The setting for the maximum number of open streams.
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The setting for how many bytes of an answer a client takes.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// The error of a stream that was not processed.
const REFUSED_STREAM: u32 = 7;

struct Frame {
    kind: u8,
    stream: u32,
    payload: Vec<u8>,
}

async fn read(connection: &mut TcpStream) -> Frame {
    try_read(connection).await.unwrap()
}

async fn try_read(connection: &mut TcpStream) -> io::Result<Frame> {
    let mut head = [0; 9];
    connection.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    connection.read_exact(&mut payload).await?;
    Ok(Frame {
        kind: head[3],
        stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        payload,
    })
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn text(block: &mut Vec<u8>, text: &str) {
    block.push(u8::try_from(text.len()).unwrap());
    block.extend(text.as_bytes());
}

/// A request without a body.
fn get(stream: u32, path: &str) -> Vec<u8> {
    // GET and http are in the static table. The path and the authority are not, and are not added to the dynamic one.
    let mut block = vec![0x82, 0x86];
    for (index, value) in [(0x04, path), (0x01, "localhost")] {
        block.push(index);
        text(&mut block, value);
    }
    // The flags end the headers and the request.
    frame(HEADERS, 0x05, stream, &block)
}

/// A request that waits for a change of a lock.
fn watch(stream: u32) -> Vec<u8> {
    get(stream, "/v1/lock?name=a&seen=none&wait_ms=60000")
}

/// The begin of a connection whose client accepts nothing of any answer.
fn accepting_nothing() -> Vec<u8> {
    let mut window = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    window.extend([0; 4]);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &window));
    bytes
}

#[tokio::test]
async fn a_connection_has_a_limit_of_open_requests() {
    let at = one().await;
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    // The streams of a client have odd numbers.
    bytes.extend((0..257).flat_map(|count| watch(2 * count + 1)));
    connection.write_all(&bytes).await.unwrap();
    let refused = async {
        let mut announced = None;
        loop {
            let frame = read(&mut connection).await;
            match frame.kind {
                SETTINGS => {
                    let settings = frame.payload.chunks_exact(6);
                    let mut settings = settings.map(|one| {
                        let value = u32::from_be_bytes([one[2], one[3], one[4], one[5]]);
                        (u16::from_be_bytes([one[0], one[1]]), value)
                    });
                    let found = settings.find(|(setting, _)| *setting == MAX_CONCURRENT_STREAMS);
                    announced = announced.or(found);
                }
                RST_STREAM => return (announced, frame),
                kind => assert_ne!(kind, HEADERS, "an answer"),
            }
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    let (announced, refused) = refused.expect("none is refused");
    assert_eq!(announced, Some((MAX_CONCURRENT_STREAMS, 256)));
    assert_eq!(refused.stream, 2 * 256 + 1);
    assert_eq!(refused.payload, REFUSED_STREAM.to_be_bytes());
}

/// A store that serves one request at a time.
#[derive(Debug)]
struct OneAtATime {
    store: Memory,
    turn: Semaphore,
}

#[async_trait]
impl Layer for OneAtATime {
    fn below(&self) -> &dyn Engine {
        &self.store
    }

    async fn place(&self, claim: &Claim) -> Result<Standing, Error> {
        let _turn = self.turn.acquire().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.store.place(claim).await
    }
}

impl fmt::Display for OneAtATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// A client that does not read its answer must not keep what its requests use at the store.
#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let (store, turn) = (Memory::new(), Semaphore::new(1));
    let at = replica(Arc::new(OneAtATime { store, turn })).await;
    let client = Client::new();
    // The answer to the first request is known at once, so the response begins.
    let first = json!({"claim": client.claim().to_string(), "release": {"name": "x"}});
    let takes = ["a", "b"].map(|name| {
        let claim = client.claim().to_string();
        json!({"claim": claim, "take": {"name": name}})
    });
    let body = json!({"claims": [first, takes[0], takes[1]]}).to_string();
    let mut block = vec![0x83, 0x86];
    for (index, value) in [(0x04, "/v1/batch"), (0x01, "localhost")] {
        block.push(index);
        text(&mut block, value);
    }
    for (name, value) in [
        ("content-type", "application/json"),
        ("fencelock-key", client.key.secret()),
    ] {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    let mut bytes = accepting_nothing();
    bytes.extend(frame(HEADERS, 0x04, 1, &block));
    bytes.extend(frame(DATA, 0x01, 1, body.as_bytes()));
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    connection.write_all(&bytes).await.unwrap();
    while read(&mut connection).await.kind != HEADERS {}
    let other = Client::new();
    let taken = other.take(&at, other.claim(), "c");
    let taken = tokio::time::timeout(Duration::from_secs(5), taken).await;
    taken.expect("the store serves nobody");
}

/// A connection of HTTP/2 that serves a request does not end, and one that serves none does.
#[tokio::test]
async fn an_idle_connection_ends() {
    let mut config = Config::default();
    config.limits.idle_timeout = Duration::from_millis(400);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(watch(1));
    connection.write_all(&bytes).await.unwrap();
    let (mut serving, mut told) = (true, false);
    let mut pings = 0;
    let ends = async {
        loop {
            let Ok(frame) = try_read(&mut connection).await else {
                return;
            };
            match frame.kind {
                // The service asks whether the client is there.
                PING if !told => {
                    pings += 1;
                    let answer = self::frame(PING, 1, 0, &frame.payload);
                    connection.write_all(&answer).await.unwrap();
                    if pings == 5 {
                        let client = Client::new();
                        client.take(&at, client.claim(), "a").await;
                    }
                }
                HEADERS => serving = false,
                GOAWAY => told = true,
                _ => {}
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ends).await;
    ended.expect("the connection stays open");
    assert!(!serving && told, "{serving} {told} {pings}");
}

/// A client that sends requests and reads no answer.
#[tokio::test]
async fn a_connection_whose_answers_nobody_reads_ends() {
    let mut config = Config::default();
    config.limits.unread_timeout = Duration::from_millis(300);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    let request = b"GET /v1/store HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let sends = async { while connection.write_all(request).await.is_ok() {} };
    let ended = tokio::time::timeout(Duration::from_secs(20), sends).await;
    ended.expect("the connection stays open");
}

/// A client of HTTP/2 that accepts nothing of an answer, while the connection goes on.
#[tokio::test]
async fn an_answer_that_is_not_accepted_ends_the_connection() {
    let mut config = Config::default();
    config.limits.unread_timeout = Duration::from_millis(300);
    let at = replica_with(Arc::new(Memory::new()), config).await;
    let mut connection = TcpStream::connect(at.address()).await.unwrap();
    let mut bytes = accepting_nothing();
    bytes.extend(get(1, "/v1/store"));
    connection.write_all(&bytes).await.unwrap();
    let mut began = false;
    let ends = async {
        while let Ok(frame) = try_read(&mut connection).await {
            began |= frame.kind == HEADERS;
            assert_ne!(frame.kind, DATA);
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), ends).await;
    ended.expect("the connection stays open");
    assert!(began);
}
