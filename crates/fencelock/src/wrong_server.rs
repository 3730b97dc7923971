//! Tells a store that is away from a URL that leads to another kind of server.
//!
//! If a store could not be opened, these functions ask its servers on new connections. They try the store's own protocol first:
//! a server that speaks it is the right one, and the engine's error is reported. Then they try the other protocols, with
//! requests that change nothing. No secret is sent.

use std::fmt;
use std::time::Duration;

use fencelock_core::engine::Address;
use fencelock_core::engine::host_and_port;
use fencelock_core::{ConfigPart, Error, StoreUrl};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a server may take to answer one request.
const LIMIT: Duration = Duration::from_secs(1);

/// The number of bytes that are enough to recognize a protocol.
const ENOUGH: usize = 2048;

/// The protocol or kind of a server, as recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    Redis,
    MySql,
    PostgreSql,
    ZooKeeper,
    Etcd,
    LockService,
    /// A proxy that reaches no server now; the server's kind is unknown.
    Gateway,
    Http,
    Tls,
    Ssh,
}

impl Speaks {
    /// The scheme of a URL for such a server; `None` if it is not a store.
    const fn scheme(self) -> Option<&'static str> {
        match self {
            Self::Redis => Some("redis"),
            Self::MySql => Some("mysql"),
            Self::PostgreSql => Some("postgres"),
            Self::ZooKeeper => Some("zookeeper"),
            Self::Etcd => Some("etcd"),
            Self::LockService => Some("fencelock+http"),
            Self::Gateway | Self::Http | Self::Tls | Self::Ssh => None,
        }
    }
}

impl fmt::Display for Speaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "a Redis server",
            Self::MySql => "a MySQL or MariaDB server",
            Self::PostgreSql => "a PostgreSQL server",
            Self::ZooKeeper => "a ZooKeeper server",
            Self::Etcd => "an etcd server",
            Self::LockService => "fencelock's lock service",
            Self::Gateway | Self::Http => "an HTTP server",
            Self::Tls => "a server that speaks TLS",
            Self::Ssh => "an SSH server",
        })
    }
}

/// The addresses of a URL, and the kind of server that should be there.
pub(crate) struct Expected {
    shown: String,
    scheme: String,
    addresses: Vec<Address>,
    speaks: Speaks,
    tls: Tls,
}

/// How the scheme of a URL says whether to encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tls {
    /// This one encrypts; the other scheme does not.
    Yes(&'static str),
    /// This one does not; the other scheme does.
    No(&'static str),
    /// An option of the URL says whether to encrypt.
    Option,
    /// The protocol always begins without TLS.
    Later,
}

impl Expected {
    /// None if the store is not a server at addresses.
    pub(crate) fn new(url: &StoreUrl) -> Option<Self> {
        let (port, speaks, tls) = match url.scheme.as_str() {
            "redis" | "valkey" => (6379, Speaks::Redis, Tls::No("rediss")),
            "rediss" => (6379, Speaks::Redis, Tls::Yes("redis")),
            "redis+sentinel" => (26379, Speaks::Redis, Tls::No("rediss+sentinel")),
            "rediss+sentinel" => (26379, Speaks::Redis, Tls::Yes("redis+sentinel")),
            "redis+cluster" => (6379, Speaks::Redis, Tls::No("rediss+cluster")),
            "rediss+cluster" => (6379, Speaks::Redis, Tls::Yes("redis+cluster")),
            "redlock" => (6379, Speaks::Redis, Tls::No("redlocks")),
            "redlocks" => (6379, Speaks::Redis, Tls::Yes("redlock")),
            "mysql" | "mariadb" => (3306, Speaks::MySql, Tls::Later),
            "postgres" | "postgresql" => (5432, Speaks::PostgreSql, Tls::Later),
            "zookeeper" => (2181, Speaks::ZooKeeper, Tls::Option),
            "etcd" => (2379, Speaks::Etcd, Tls::No("etcds")),
            "etcds" => (2379, Speaks::Etcd, Tls::Yes("etcd")),
            "fencelock+http" => (7420, Speaks::LockService, Tls::No("fencelock+https")),
            "fencelock+https" => (7420, Speaks::LockService, Tls::Yes("fencelock+http")),
            _ => return None,
        };
        let hosts = url.hosts.iter();
        let addresses = hosts.filter_map(|host| url.address(host, port).ok());
        Some(Self {
            shown: url.to_string(),
            scheme: url.scheme.clone(),
            addresses: addresses.collect(),
            speaks,
            tls,
        })
    }

    /// The error if one of the addresses is known to lead to another kind of server.
    pub(crate) async fn refuse_other(&self) -> Option<Error> {
        for address in &self.addresses {
            let address = host_and_port(address);
            if let Some(why) = self.judge(&address).await {
                let why = format!("{address} {why}");
                return Some(Error::config(&self.shown, ConfigPart::Server, why));
            }
        }
        None
    }

    /// The text of an error: what is at an address instead, and what to do.
    async fn judge(&self, address: &str) -> Option<String> {
        let encrypts = matches!(self.tls, Tls::Yes(_));
        let own = if encrypts { Speaks::Tls } else { self.speaks };
        if speaks(address, own).await {
            return None;
        }
        let found = identify(address).await?;
        let away = (found, own) == (Speaks::Gateway, Speaks::LockService);
        if found == own || away {
            return None;
        }
        let scheme = &self.scheme;
        Some(match (found, self.tls) {
            (Speaks::Tls, Tls::No(other)) => format!(
                "speaks TLS, and {scheme}:// does not: write {other}:// (with tls-ca=FILE for an authority of your own)"
            ),
            (Speaks::Tls, Tls::Option) => format!(
                "speaks TLS, and this URL does not: give it tls-ca=FILE, or name the port of {} without TLS",
                self.speaks
            ),
            (found, Tls::Yes(other)) if found == self.speaks => format!(
                "does not speak TLS, and {scheme}:// does: write {other}://, or name the port of {found} with TLS"
            ),
            (found, _) => {
                let (wants, right) = (self.speaks, found.scheme());
                let right =
                    right.map(|right| format!("write {right}:// if that is the store, or "));
                let right = right.unwrap_or_default();
                format!(
                    "seems to be {found}, and {scheme}:// wants {wants}: {right}correct host and port"
                )
            }
        })
    }
}

/// Whether a server speaks this protocol.
async fn speaks(address: &str, protocol: Speaks) -> bool {
    let found = match protocol {
        Speaks::PostgreSql => postgresql(address).await,
        Speaks::ZooKeeper => zookeeper(address).await,
        Speaks::Tls => tls(address).await,
        Speaks::Etcd | Speaks::LockService | Speaks::Gateway | Speaks::Http => http(address).await,
        Speaks::Redis | Speaks::MySql | Speaks::Ssh => greeting(address).await,
    };
    found == Some(protocol)
}

/// The protocol of a server, if it can be recognized.
async fn identify(address: &str) -> Option<Speaks> {
    let (greeting, tls, postgresql, zookeeper) = tokio::join!(
        greeting(address),
        tls(address),
        postgresql(address),
        zookeeper(address)
    );
    match greeting.or(tls).or(postgresql).or(zookeeper) {
        None | Some(Speaks::Http) => http(address).await,
        found => found,
    }
}

/// The protocol that a server shows in its greeting, or in its answer to `PING`.
async fn greeting(address: &str) -> Option<Speaks> {
    let said = ask(address, b"PING\r\n", |said| said.len() > 4).await;
    match &*said {
        // Redis answers so in any state; it sends `-DENIED` without being asked.
        [b'+' | b'-', ..] => Some(Speaks::Redis),
        said if said.starts_with(b"HTTP/") => Some(Speaks::Http),
        said if said.starts_with(b"SSH-") => Some(Speaks::Ssh),
        // A packet with the number 0: the greeting, or an error for a client that may not connect.
        [_, _, 0, 0, 10 | 255, ..] => Some(Speaks::MySql),
        [0x15 | 0x16, 3, ..] => Some(Speaks::Tls),
        _ => None,
    }
}

/// A TLS server answers a malformed greeting with an alert.
async fn tls(address: &str) -> Option<Speaks> {
    const HELLO: [u8; 9] = [0x16, 3, 1, 0, 4, 1, 0, 0, 0];
    let said = ask(address, &HELLO, |said| said.len() > 1).await;
    matches!(&*said, [0x15 | 0x16, 3, ..]).then_some(Speaks::Tls)
}

/// PostgreSQL answers `SSLRequest` with one letter.
async fn postgresql(address: &str) -> Option<Speaks> {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    let said = ask(address, &SSL_REQUEST, |said| !said.is_empty()).await;
    matches!(&*said, [b'S' | b'N']).then_some(Speaks::PostgreSql)
}

/// ZooKeeper answers the word `srvr`, also where it is not allowed.
async fn zookeeper(address: &str) -> Option<Speaks> {
    let said = ask(address, b"srvr", |said| said.len() > 16).await;
    let known: [&[u8]; 2] = [b"Zookeeper version", b"srvr is not execu"];
    let mut known = known.iter();
    known
        .any(|words| said.starts_with(words))
        .then_some(Speaks::ZooKeeper)
}

/// Which HTTP server it is: etcd and the lock service say so.
async fn http(address: &str) -> Option<Speaks> {
    let request = format!("GET /version HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let said = ask(address, request.as_bytes(), |_| false).await;
    let said = String::from_utf8_lossy(&said).to_ascii_lowercase();
    // An answer without a complete head shows nothing.
    let (head, _) = said.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("http/")?.split(' ').nth(1)?;
    Some(match status {
        _ if said.contains("\"etcdserver\"") => Speaks::Etcd,
        _ if head.contains("\r\nfencelock-replica:") => Speaks::LockService,
        "429" | "502" | "503" | "504" => Speaks::Gateway,
        _ => Speaks::Http,
    })
}

/// Sends a request on a new connection. Returns the answer, up to the first part that is `enough`, or to its end.
async fn ask(address: &str, request: &[u8], enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut said = Vec::new();
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request).await?;
        let mut buffer = [0; ENOUGH];
        while !enough(&said) && said.len() < ENOUGH {
            match stream.read(&mut buffer).await? {
                0 => break,
                read => said.extend_from_slice(&buffer[..read]),
            }
        }
        std::io::Result::Ok(())
    };
    // The answer received so far counts, even after an error or a timeout.
    let _ = timeout(LIMIT, talk).await;
    said
}
