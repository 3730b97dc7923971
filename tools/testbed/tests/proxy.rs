//! What the proxy does to connections, against an echo server.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use fencelock_testbed::{Flow, Proxy};

/// Echoes each connection on its own thread until it ends. The listener lives as long as the test process.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut writer = stream.try_clone().unwrap();
                drop(std::io::copy(&mut stream, &mut writer));
            });
        }
    });
    port
}

struct Client(TcpStream);

impl Client {
    fn new(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        Self(stream)
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// What arrives within `limit`; `None` if nothing does.
    fn hear(&mut self, length: usize, limit: Duration) -> Option<String> {
        self.0.set_read_timeout(Some(limit)).unwrap();
        let mut buffer = vec![0; length];
        match self.0.read_exact(&mut buffer) {
            Ok(()) => Some(String::from_utf8(buffer).unwrap()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }
}

const SOON: Duration = Duration::from_secs(5);
const NEVER: Duration = Duration::from_millis(150);

#[test]
fn passes_and_counts() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    client.send("hello");
    assert_eq!(client.hear(5, SOON).as_deref(), Some("hello"));
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    assert_eq!((proxy.request_bytes(), proxy.answer_bytes()), (5, 5));
}

#[test]
fn delays_each_direction_by_itself() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    proxy.answers(Flow::Delay(Duration::from_millis(100)));
    let begin = Instant::now();
    client.send("1");
    assert!(client.hear(1, SOON).is_some());
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(100), "{took:?}");
    proxy.requests(Flow::Delay(Duration::from_millis(100)));
    let begin = Instant::now();
    client.send("2");
    assert!(client.hear(1, SOON).is_some());
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
}

#[test]
fn held_bytes_come_later_and_in_order() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    proxy.requests(Flow::Hold);
    client.send("ab");
    client.send("cd");
    assert_eq!(client.hear(1, NEVER), None);
    proxy.requests(Flow::Pass);
    assert_eq!(client.hear(4, SOON).as_deref(), Some("abcd"));
}

#[test]
fn a_connection_that_lost_bytes_stays_silent_and_a_new_one_does_not() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    proxy.answers(Flow::Lose);
    client.send("a");
    assert_eq!(client.hear(1, NEVER), None);
    proxy.answers(Flow::Pass);
    client.send("b");
    assert_eq!(client.hear(1, NEVER), None);
    let mut other = Client::new(&proxy);
    other.send("c");
    assert_eq!(other.hear(1, SOON).as_deref(), Some("c"));
}

#[test]
fn resets_and_refuses() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    client.send("a");
    assert!(client.hear(1, SOON).is_some());
    proxy.refuse(true).unwrap();
    let refused = TcpStream::connect(("127.0.0.1", proxy.port()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    client.send("b");
    assert!(client.hear(1, SOON).is_some(), "an open connection stays");
    proxy.reset();
    client.0.set_read_timeout(Some(SOON)).unwrap();
    let error = client.0.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    proxy.refuse(false).unwrap();
    let mut client = Client::new(&proxy);
    client.send("c");
    assert_eq!(client.hear(1, SOON).as_deref(), Some("c"));
}

#[test]
fn a_regular_end_loses_nothing() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    let sent = vec![7; 3_000_000];
    let mut writer = client.0.try_clone().unwrap();
    let heard = std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut heard = Vec::new();
        client.0.read_to_end(&mut heard).unwrap();
        heard
    });
    assert_eq!(heard.len(), sent.len());
}

#[test]
fn dropped_it_cuts_everything() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut client = Client::new(&proxy);
    client.send("a");
    assert!(client.hear(1, SOON).is_some());
    let port = proxy.port();
    drop(proxy);
    client.0.set_read_timeout(Some(SOON)).unwrap();
    assert!(!matches!(client.0.read(&mut [0]), Ok(1..)));
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn repeats_what_it_kept_over_another_connection() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(server.local_addr().unwrap().port()).unwrap();
    let mut client = Client::new(&proxy);
    let (mut first, _) = server.accept().unwrap();
    let read = |stream: &mut TcpStream| {
        let mut text = [0; 4];
        stream.read_exact(&mut text).unwrap();
        text
    };
    client.send("one.");
    assert_eq!(&read(&mut first), b"one.");
    proxy.keep();
    client.send("two.");
    assert_eq!(&read(&mut first), b"two.");
    proxy.repeat().unwrap();
    let (mut again, _) = server.accept().unwrap();
    assert_eq!(&read(&mut again), b"two.");
    // The requests arrive once more, and only those that were kept.
    client.send("end.");
    assert_eq!(&read(&mut first), b"end.");
    proxy.repeat().unwrap();
    server.set_nonblocking(true).unwrap();
    std::thread::sleep(NEVER);
    assert!(server.accept().is_err());
}
