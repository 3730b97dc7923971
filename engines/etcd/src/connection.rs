//! A connection to one member of the cluster.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Client, ClusterClient, Error as Driver, KvClient, LeaseClient, MaintenanceClient,
    WatchFilterType, WatchOptions,
};
use fencelock_core::Error;
use fencelock_core::support::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::Config;
use crate::error::{explain, full_text, is_refusal};
use crate::layout::BASE;
use crate::watches::{Watch, Watches};

pub(crate) struct Connection {
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    pub(crate) watches: Watches,
    pub(crate) cluster: ClusterClient,
    pub(crate) maintenance: MaintenanceClient,
    broken: Arc<watch::Sender<bool>>,
    /// A watch that ends with the connection.
    guard: Mutex<Option<Watch>>,
    /// Its number among the connections of this client.
    pub(crate) number: u64,
    /// The cluster's revision when the connection was opened.
    pub(crate) revision: i64,
}

/// Why a member cannot be used.
#[derive(Debug)]
pub(crate) struct OpenError {
    pub(crate) error: Error,
    /// The member is up and has no leader. It may have one soon.
    pub(crate) no_leader: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to a member and asks the quorum for a key: a member that is cut off from the others does not answer that.
    pub(crate) async fn open(
        config: &Config,
        endpoint: &str,
        number: u64,
    ) -> Result<Self, OpenError> {
        let opened = async {
            let client = Client::connect([endpoint], Some(config.options.clone())).await?;
            let got = client.kv_client().get(BASE, None).await?;
            Ok((client, got.header().map_or(0, |header| header.revision())))
        };
        let (client, revision) = match opened.await {
            Ok(opened) => opened,
            Err(error) => return Err(explain_open(config, endpoint, &error).await),
        };
        let broken = Arc::new(watch::Sender::new(false));
        Ok(Self {
            kv: client.kv_client(),
            lease: client.lease_client(),
            watches: Watches::new(client.watch_client(), Arc::clone(&broken)),
            cluster: client.cluster_client(),
            maintenance: client.maintenance_client(),
            broken,
            guard: Mutex::default(),
            number,
            revision,
        })
    }

    /// Returns once the connection was given up.
    pub(crate) async fn closed(&self) {
        let mut broken = self.broken.subscribe();
        // The sender lives as long as `self`.
        drop(broken.wait_for(|broken| *broken).await);
    }

    pub(crate) fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    pub(crate) fn give_up(&self) {
        self.broken.send_replace(true);
    }

    /// Whether the end of this connection would be noticed.
    pub(crate) fn is_guarded(&self) -> bool {
        let guard = self.guard.lock();
        guard.is_some()
    }

    /// Opens a watch that reports nothing but its own end. The driver reconnects silently, perhaps to a server with
    /// another history.
    pub(crate) async fn guard(&self, limit: Duration) {
        let nothing = [WatchFilterType::NoPut, WatchFilterType::NoDelete];
        let options = WatchOptions::new().with_filters(nothing);
        let open = self.watches.open(BASE.as_bytes(), options, false);
        match timeout(limit, open).await {
            Ok(Ok(watch)) => {
                let mut guard = self.guard.lock();
                *guard = Some(watch);
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "watching for the end of a connection; trying again");
            }
            // The next claim tries again.
            Err(_) => {}
        }
    }
}

/// Says why a member cannot be used, and what to change in the URL.
async fn explain_open(config: &Config, endpoint: &str, error: &Driver) -> OpenError {
    let address = endpoint.split_once("//").map_or(endpoint, |(_, rest)| rest);
    let answered = is_refusal(error);
    if !answered && let Some(why) = wrong_scheme(config, address).await {
        return OpenError {
            error: Error::config(&config.store, format!("{address} {why}")),
            no_leader: false,
        };
    }
    let mut action = format!("connecting to {address}");
    if config.tls && !config.certificate && !answered && speaks_tls(address).await {
        action += " (a server that requires client certificates closes other connections; set tls-cert and tls-key)";
    }
    let text = full_text(error);
    OpenError {
        error: explain(&config.store, &action, error),
        no_leader: text.contains("no leader") || text.contains("leader changed"),
    }
}

/// Whether the URL has the wrong one of `etcd://` and `etcds://`.
async fn wrong_scheme(config: &Config, address: &str) -> Option<&'static str> {
    match config.tls {
        true => speaks_plain_http(address)
            .await
            .then_some("does not speak TLS; write etcd://"),
        false => speaks_tls(address)
            .await
            .then_some("speaks TLS; write etcds://, with tls-ca=FILE for a private authority"),
    }
}

/// Whether a server answers a (malformed) TLS greeting as only a TLS server does.
async fn speaks_tls(address: &str) -> bool {
    const GREETING: [u8; 9] = [0x16, 3, 1, 0, 4, 1, 0, 0, 0];
    const ALERT_OR_HANDSHAKE: [u8; 2] = [0x15, 0x16];
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(&GREETING).await?;
        stream.read_u8().await
    };
    let answer = timeout(Duration::from_secs(1), ask).await;
    matches!(answer, Ok(Ok(first)) if ALERT_OR_HANDSHAKE.contains(&first))
}

/// Whether a server answers HTTP/2's preface without TLS with its SETTINGS (RFC 9113, 3.4).
///
/// A plain server's answer to a TLS greeting is not proof: often it just resets the connection.
async fn speaks_plain_http(address: &str) -> bool {
    const PREFACE_AND_SETTINGS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(PREFACE_AND_SETTINGS).await?;
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        io::Result::Ok(header[3])
    };
    matches!(timeout(Duration::from_secs(1), ask).await, Ok(Ok(SETTINGS)))
}
