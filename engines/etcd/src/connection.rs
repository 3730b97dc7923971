//! A connection to one member of the cluster.

use std::fmt;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use crate::config::Config;
use crate::error::{explain, full_text, is_refusal};
use crate::layout::BASE;
use crate::watches::{Watch, Watches};

/// How many requests are under way at once. The server works on fewer. Others wait for their turn, and their timeout does not
/// run during that wait. Without that limit the last of many thousands of requests would time out. The client would give up the
/// connection, and start all of them again.
const AT_ONCE: usize = 256;

/// The right to have a request under way.
pub(crate) type Turn = OwnedSemaphorePermit;

pub(crate) struct Connection {
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    pub(crate) watches: Watches,
    pub(crate) cluster: ClusterClient,
    pub(crate) maintenance: MaintenanceClient,
    broken: Arc<watch::Sender<bool>>,
    turns: Arc<Semaphore>,
    /// A watch whose end shows that the connection broke.
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
    /// Connects to a member and reads a key by quorum. A member that is cut off from the others cannot answer that.
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
            turns: Arc::new(Semaphore::new(AT_ONCE)),
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

    /// Gives up the connection. Requests that wait for their turn go to the next connection.
    pub(crate) fn give_up(&self) {
        self.broken.send_replace(true);
        self.turns.close();
    }

    /// Waits until fewer than [`AT_ONCE`] requests are under way. `None` if the connection is given up.
    pub(crate) async fn turn(&self) -> Option<Turn> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.ok();
        turn.filter(|_| !self.is_broken())
    }

    /// Whether the end of this connection will be noticed.
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

/// Says why a member cannot be used.
async fn explain_open(config: &Config, endpoint: &str, error: &Driver) -> OpenError {
    let address = endpoint.split_once("//").map_or(endpoint, |(_, rest)| rest);
    let answered = is_refusal(error);
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

/// Whether a server answers a (malformed) TLS greeting like a TLS server.
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
