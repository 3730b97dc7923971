//! A proxy that records what clients send, and may hide that the server offers TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What the proxy does to a new connection before it forwards everything.
pub(crate) type Meddle = fn(&mut TcpStream, &mut TcpStream, &Recorder) -> std::io::Result<()>;
pub(crate) type Recorder = dyn Fn(&[u8]) + Send + Sync;
type Sent = Arc<Mutex<Vec<Vec<u8>>>>;

pub(crate) struct Wire {
    port: u16,
    sent: Sent,
}

impl Wire {
    /// A proxy that only records.
    pub(crate) fn listening(server: u16) -> Self {
        Self::to(server, |_, _, _| Ok(()))
    }

    /// A proxy that first does this to each new connection.
    pub(crate) fn to(server: u16, meddle: Meddle) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Sent::default();
        let recorded = Arc::clone(&sent);
        // Like all threads here, it ends with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let at = {
                    let mut recorded = recorded.lock().unwrap();
                    recorded.push(Vec::new());
                    recorded.len() - 1
                };
                let recorded = Arc::clone(&recorded);
                let record = move |bytes: &[u8]| recorded.lock().unwrap()[at].extend(bytes);
                let client = client.unwrap();
                // An error only ends the connection.
                thread::spawn(move || pass(client, server, meddle, &record));
            }
        });
        Self { port, sent }
    }

    /// The server's URL through the proxy.
    pub(crate) fn url(&self, url: &str, strategy: &str) -> String {
        let (before, after) = url.rsplit_once(':').unwrap();
        let (_, database) = after.split_once('/').unwrap();
        format!("{before}:{}/{database}?strategy={strategy}", self.port)
    }

    /// What clients have sent so far, for each connection.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().clone()
    }

    /// Whether one of them sent this.
    pub(crate) fn has_sent(&self, word: &str) -> bool {
        let contains = |bytes: &Vec<u8>| {
            bytes
                .windows(word.len())
                .any(|part| part == word.as_bytes())
        };
        self.sent().iter().any(contains)
    }
}

fn pass(
    mut client: TcpStream,
    server: u16,
    meddle: Meddle,
    record: &Recorder,
) -> std::io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    meddle(&mut client, &mut server, record)?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let copied = std::io::copy(&mut answers, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Both);
        copied
    });
    let mut buffer = [0; 4096];
    loop {
        let count = client.read(&mut buffer)?;
        if count == 0 {
            return server.shutdown(std::net::Shutdown::Both);
        }
        record(&buffer[..count]);
        server.write_all(&buffer[..count])?;
    }
}
