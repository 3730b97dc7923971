//! A way to a server on which somebody sits: he hears what clients say, and may hide that the server offers TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What he does to a new connection before he lets everything pass.
pub(crate) type Meddle = fn(&mut TcpStream, &mut TcpStream, &Ear) -> std::io::Result<()>;
pub(crate) type Ear = dyn Fn(&[u8]) + Send + Sync;
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

pub(crate) struct Way {
    port: u16,
    heard: Heard,
}

impl Way {
    /// He only listens.
    pub(crate) fn listening(server: u16) -> Self {
        Self::to(server, |_, _, _| Ok(()))
    }

    /// He does this to each new connection first.
    pub(crate) fn to(server: u16, meddle: Meddle) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Heard::default();
        let told = Arc::clone(&heard);
        // It ends with the process, as all of these threads do.
        thread::spawn(move || {
            for client in listener.incoming() {
                let at = {
                    let mut told = told.lock().unwrap();
                    told.push(Vec::new());
                    told.len() - 1
                };
                let told = Arc::clone(&told);
                let hear = move |said: &[u8]| told.lock().unwrap()[at].extend(said);
                let client = client.unwrap();
                // An error is the end of a connection.
                thread::spawn(move || pass(client, server, meddle, &hear));
            }
        });
        Self { port, heard }
    }

    /// A server's URL by this way.
    pub(crate) fn url(&self, url: &str, strategy: &str) -> String {
        let (before, after) = url.rsplit_once(':').unwrap();
        let (_, database) = after.split_once('/').unwrap();
        format!("{before}:{}/{database}?strategy={strategy}", self.port)
    }

    /// What clients said so far, by connection.
    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }

    /// Whether one of them said this.
    pub(crate) fn hears(&self, word: &str) -> bool {
        let says = |said: &Vec<u8>| said.windows(word.len()).any(|part| part == word.as_bytes());
        self.heard().iter().any(says)
    }
}

fn pass(mut client: TcpStream, server: u16, meddle: Meddle, hear: &Ear) -> std::io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    meddle(&mut client, &mut server, hear)?;
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
        hear(&buffer[..count]);
        server.write_all(&buffer[..count])?;
    }
}
