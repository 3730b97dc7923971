//! A way to a server on which somebody sits: he hears what clients say, and may hide that the server offers TLS.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What he does to a new connection before he lets everything pass.
type Meddle = fn(&mut TcpStream, &mut TcpStream, &Ear) -> std::io::Result<()>;
type Ear = dyn Fn(&[u8]) + Send + Sync;
type Heard = Arc<Mutex<Vec<Vec<u8>>>>;

/// PostgreSQL's question whether the server has TLS.
const ASK: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// In the second byte of the capabilities in MySQL's greeting.
const OFFER: u8 = 0x08;

pub(super) struct Way {
    port: u16,
    heard: Heard,
}

impl Way {
    /// He only listens.
    pub(super) fn listening(server: u16) -> Self {
        Self::to(server, |_, _, _| Ok(()))
    }

    /// He takes the offer out of MySQL's greeting.
    pub(super) fn hiding_mysql(server: u16) -> Self {
        Self::to(server, |client, server, _| {
            let mut head = [0; 4];
            server.read_exact(&mut head)?;
            let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
            let mut greeting = vec![0; length as usize];
            server.read_exact(&mut greeting)?;
            // The protocol's version, the server's up to a zero byte, the connection's number, a challenge and a zero byte.
            let version = greeting.iter().skip(1).position(|byte| *byte == 0).unwrap();
            let offers = &mut greeting[version + 2 + 4 + 9 + 1];
            assert_ne!(*offers & OFFER, 0, "the server itself offers no TLS");
            *offers &= !OFFER;
            client.write_all(&head)?;
            client.write_all(&greeting)
        })
    }

    /// He answers PostgreSQL's clients himself that there is no TLS.
    pub(super) fn hiding_postgres(server: u16) -> Self {
        Self::to(server, |client, _, hear| {
            let mut asked = [0; ASK.len()];
            client.read_exact(&mut asked)?;
            hear(&asked);
            assert_eq!(asked, ASK, "the client does not ask for TLS");
            client.write_all(b"N")
        })
    }

    fn to(server: u16, meddle: Meddle) -> Self {
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
    pub(super) fn url(&self, url: &str, strategy: &str) -> String {
        let (before, after) = url.rsplit_once(':').unwrap();
        let (_, database) = after.split_once('/').unwrap();
        format!("{before}:{}/{database}?strategy={strategy}", self.port)
    }

    /// What clients said so far, by connection.
    pub(super) fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }

    /// Whether one of them said this.
    pub(super) fn hears(&self, word: &str) -> bool {
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
