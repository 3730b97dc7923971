//! The connection to one member of the cluster: found, kept while it answers, and found anew when it does not.
//!
//! One member at a time, the first that answers and has a leader. A balanced channel over all of them would send every
//! third request to the one that is cut off.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{
    Client, ClusterClient, Error as Driver, GetOptions, GetResponse, KvClient, LeaseClient,
    MaintenanceClient, Txn, TxnResponse, WatchFilterType, WatchOptions,
};
use fencelock_core::{Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::attempt::Attempts;
use crate::config::Config;
use crate::layout::{BASE, is_released};
use crate::refusal::{Trouble, explain, is_lease_gone, is_refusal, whole};
use crate::watches::{Watch, Watches};

/// The pause before members that have no leader are asked again.
const ELECTION: Duration = Duration::from_millis(100);

/// A cluster, by way of one member.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) config: Config,
    current: Mutex<Option<Arc<Link>>>,
    opening: Attempts,
    closed: AtomicBool,
    connections: AtomicU64,
    /// The highest revision that was seen.
    seen: AtomicI64,
}

/// A connection to one member.
pub(crate) struct Link {
    pub(crate) kv: KvClient,
    pub(crate) lease: LeaseClient,
    watches: Watches,
    cluster: ClusterClient,
    maintenance: MaintenanceClient,
    broken: Arc<watch::Sender<bool>>,
    /// Ends with the connection.
    guard: Mutex<Option<Watch>>,
    /// Its number among the connections of this client.
    pub(crate) number: u64,
    /// The cluster's revision when it was made.
    revision: i64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    /// Returns once the connection is given up.
    pub(crate) async fn gone(&self) {
        let mut broken = self.broken.subscribe();
        // The sender lives as long as `self`.
        drop(broken.wait_for(|broken| *broken).await);
    }

    fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// Whether the end of this connection is watched.
    pub(crate) fn is_guarded(&self) -> bool {
        let guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        guard.is_some()
    }

    /// Watches for the end of this connection: a watch that tells nothing but its own end. The driver connects again
    /// without a word, perhaps to a server that has another past.
    pub(crate) async fn guard(&self, limit: Duration) {
        let nothing = [WatchFilterType::NoPut, WatchFilterType::NoDelete];
        let options = WatchOptions::new().with_filters(nothing);
        let open = self.watches.open(BASE.as_bytes(), options, false);
        match timeout(limit, open).await {
            Ok(Ok(watch)) => {
                let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
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

impl Store {
    /// Finds a member.
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let store = Self {
            config,
            current: Mutex::default(),
            opening: Attempts::default(),
            closed: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            seen: AtomicI64::new(0),
        };
        let link = store.find(store.config.connect_timeout).await?;
        store.saw(link.revision);
        *store.current() = Some(link);
        Ok(store)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(link) = self.current().take() {
            link.broken.send_replace(true);
        }
    }

    fn unbroken(&self) -> Option<Arc<Link>> {
        let current = self.current();
        current.as_ref().filter(|link| !link.is_broken()).cloned()
    }

    /// Whether this is the connection of the moment still.
    pub(crate) fn is_over(&self, connection: u64) -> bool {
        self.unbroken().is_none_or(|link| link.number != connection)
    }

    /// The connection, made anew if there is none.
    pub(crate) async fn link(&self) -> Result<Arc<Link>> {
        if let Some(link) = self.unbroken() {
            return Ok(link);
        }
        let config = &self.config;
        let limit = config.connect_timeout.min(config.response_timeout);
        let opening = self.opening.begin(limit).await;
        let mut opening = opening.ok_or_else(|| self.silent("connecting", limit))?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        if let Some(link) = self.unbroken() {
            return Ok(link);
        }
        opening.inherit(&config.store)?;
        let found = self.find(limit).await.map_err(|error| match error {
            // What was right before may be so again: a cluster that is being rebuilt has no users yet.
            Error::Config { store, why } => Error::unavailable(store, "connecting again", why),
            other => other,
        });
        let link = found.inspect_err(|error| opening.fail(error))?;
        if link.revision < self.seen() {
            self.went_back(link.revision);
        }
        *self.current() = Some(Arc::clone(&link));
        Ok(link)
    }

    /// The number of the connection of the moment.
    pub(crate) async fn connection(&self) -> Result<u64> {
        Ok(self.link().await?.number)
    }

    /// The highest revision that was seen: whatever is asked for now and changes something has a higher one, unless a
    /// snapshot was restored.
    pub(crate) fn seen(&self) -> i64 {
        self.seen.load(Ordering::SeqCst)
    }

    fn saw(&self, revision: i64) {
        self.seen.fetch_max(revision, Ordering::SeqCst);
    }

    /// Revisions have gone back to this one: somebody has restored a snapshot.
    pub(crate) fn went_back(&self, to: i64) {
        tracing::warn!(store = %self.config.store, "the cluster's revisions went back: a snapshot was restored");
        self.seen.store(to, Ordering::SeqCst);
    }

    /// Gives a connection up; the next request finds another.
    pub(crate) fn give_up(&self, link: &Arc<Link>) {
        link.broken.send_replace(true);
        let mut current = self.current();
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, link)) {
            *current = None;
        }
    }

    /// The first member that answers and has a leader.
    async fn find(&self, limit: Duration) -> Result<Arc<Link>> {
        let ends = Instant::now() + limit;
        loop {
            let failed = match timeout(ends - Instant::now(), self.race()).await {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(failed)) => failed,
                Err(_) => Trouble::unsent(self.silent("connecting", limit)),
            };
            // Members that are up and without a leader may have one soon.
            if !failed.maybe_done || Instant::now() + ELECTION >= ends {
                return Err(failed.error);
            }
            sleep(ELECTION).await;
        }
    }

    async fn race(&self) -> Result<Arc<Link>, Trouble> {
        let endpoints = self.config.endpoints.iter();
        let mut racing: FuturesUnordered<_> = endpoints.map(|e| self.try_one(e)).collect();
        let mut worst: Option<Trouble> = None;
        while let Some(tried) = racing.next().await {
            let failed = match tried {
                Ok(link) => return Ok(link),
                Err(failed) => failed,
            };
            // What somebody must change says more than a member that is down.
            if worst
                .as_ref()
                .is_none_or(|worst| worst.error.is_retryable())
            {
                worst = Some(failed);
            }
        }
        Err(worst.unwrap_or_else(|| Trouble::unsent(Error::Closed)))
    }

    async fn try_one(&self, endpoint: &str) -> Result<Arc<Link>, Trouble> {
        let opened = async {
            let client = Client::connect([endpoint], Some(self.config.options.clone())).await?;
            // Connects, and asks the quorum: a member that is cut off does not answer this.
            let got = client.kv_client().get(BASE, None).await?;
            Ok((client, got.header().map_or(0, |header| header.revision())))
        };
        match opened.await {
            Ok((client, revision)) => {
                let broken = Arc::new(watch::Sender::new(false));
                Ok(Arc::new(Link {
                    kv: client.kv_client(),
                    lease: client.lease_client(),
                    watches: Watches::new(client.watch_client(), Arc::clone(&broken)),
                    cluster: client.cluster_client(),
                    maintenance: client.maintenance_client(),
                    broken,
                    guard: Mutex::default(),
                    number: self.connections.fetch_add(1, Ordering::SeqCst),
                    revision,
                }))
            }
            Err(error) => Err(self.cannot_connect(endpoint, &error).await),
        }
    }

    async fn cannot_connect(&self, endpoint: &str, error: &Driver) -> Trouble {
        let store = &self.config.store;
        let address = endpoint.split_once("//").map_or(endpoint, |(_, rest)| rest);
        let action = format!("connecting to {address}");
        let answered = is_refusal(error);
        let wrong_scheme = match self.config.tls {
            _ if answered => None,
            true => speaks_plainly(address)
                .await
                .then_some("does not speak TLS; write etcd://"),
            false => speaks_tls(address).await.then_some(
                "speaks TLS; write etcds://, with tls-ca=FILE for an authority of your own",
            ),
        };
        if let Some(why) = wrong_scheme {
            return Trouble::unsent(Error::config(store, format!("{address} {why}")));
        }
        let text = whole(error);
        let wants_more = match self.config.tls && !self.config.certificate && !answered {
            true => speaks_tls(address).await,
            false => false,
        };
        let action = match wants_more {
            true => format!(
                "{action} (a server that wants certificates of its clients closes other connections; name one with \
                 tls-cert and tls-key)"
            ),
            false => action,
        };
        Trouble {
            error: explain(store, &action, error),
            // Here: worth asking again.
            maybe_done: text.contains("no leader") || text.contains("leader changed"),
            lease_gone: false,
        }
    }

    pub(crate) fn silent(&self, action: &str, limit: Duration) -> Error {
        let cause = format!("no answer within {limit:?}");
        Error::unavailable(&self.config.store, action, cause)
    }

    /// Sends one request, and waits for its answer in time.
    async fn ask<T, F>(
        &self,
        action: impl Fn() -> String,
        request: impl FnOnce(Arc<Link>) -> F,
    ) -> Result<T, Trouble>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let link = self.link().await.map_err(Trouble::unsent)?;
        let limit = self.config.response_timeout;
        let error = match timeout(limit, request(Arc::clone(&link))).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => {
                self.give_up(&link);
                return Err(Trouble {
                    error: self.silent(&action(), limit),
                    maybe_done: true,
                    lease_gone: false,
                });
            }
        };
        let refused = is_refusal(&error);
        if !refused {
            self.give_up(&link);
        }
        Err(Trouble {
            error: explain(&self.config.store, &action(), &error),
            maybe_done: !refused,
            lease_gone: is_lease_gone(&error),
        })
    }

    pub(crate) async fn txn(
        &self,
        action: impl Fn() -> String,
        txn: Txn,
    ) -> Result<TxnResponse, Trouble> {
        let txn = |link: Arc<Link>| async move { link.kv.clone().txn(txn).await };
        let answer = self.ask(action, txn).await?;
        self.saw(answer.header().map_or(0, |header| header.revision()));
        Ok(answer)
    }

    pub(crate) async fn get(
        &self,
        action: impl Fn() -> String,
        key: &str,
        options: GetOptions,
    ) -> Result<GetResponse, Trouble> {
        let get = |link: Arc<Link>| async move { link.kv.clone().get(key, Some(options)).await };
        self.ask(action, get).await
    }

    /// How many members there are, and the version of the one that was asked.
    pub(crate) async fn about(&self) -> Result<(usize, String), Trouble> {
        let list = |link: Arc<Link>| async move { link.cluster.clone().member_list().await };
        let members = self.ask(|| "asking for its members".into(), list).await?;
        let status = |link: Arc<Link>| async move { link.maintenance.clone().status().await };
        let status = self.ask(|| "asking for its version".into(), status).await?;
        Ok((members.members().len(), status.version().to_owned()))
    }

    /// A new lease: its id, and for how long the server keeps it.
    pub(crate) async fn grant(&self, seconds: i64) -> Result<(i64, Duration), Trouble> {
        let grant = |link: Arc<Link>| async move { link.lease.clone().grant(seconds, None).await };
        let granted = self.ask(|| "beginning a session".into(), grant).await?;
        Ok((granted.id(), whole_seconds(granted.ttl())))
    }

    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<(), Trouble> {
        let keep = |link: Arc<Link>| async move {
            // A stream for each: an answer that is late can then never be taken for that of a later question.
            link.lease.clone().keep_alive(lease).await.map(drop)
        };
        self.ask(|| "keeping a session alive".into(), keep).await
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), Trouble> {
        let revoke = |link: Arc<Link>| async move { link.lease.clone().revoke(lease).await };
        self.ask(|| "ending a session".into(), revoke).await?;
        Ok(())
    }

    /// What is left of a lease, and the keys on it if they are wanted; `None` if it is over.
    pub(crate) async fn lease(
        &self,
        lease: i64,
        keys: bool,
    ) -> Result<Option<(Duration, Vec<Vec<u8>>)>, Trouble> {
        use etcd_client::LeaseTimeToLiveOptions as Options;
        let options = match keys {
            true => Options::new().with_keys(),
            false => Options::new(),
        };
        let ask = |link: Arc<Link>| async move {
            link.lease.clone().time_to_live(lease, Some(options)).await
        };
        let told = self.ask(|| "asking about a session".into(), ask).await;
        match told {
            Ok(told) if told.ttl() < 0 => Ok(None),
            Ok(told) => {
                let keys = told.keys().iter().map(|key| key.to_vec()).collect();
                Ok(Some((whole_seconds(told.ttl()), keys)))
            }
            Err(trouble) if trouble.lease_gone => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// Deletes a key; false if it was not there.
    pub(crate) async fn delete(
        &self,
        action: impl Fn() -> String,
        key: &str,
    ) -> Result<bool, Trouble> {
        let delete = |link: Arc<Link>| async move { link.kv.clone().delete(key, None).await };
        Ok(self.ask(action, delete).await?.deleted() > 0)
    }

    /// A watch that sees everything from now on, over the connection returned with it.
    pub(crate) async fn watch(
        &self,
        key: &[u8],
        options: WatchOptions,
    ) -> Result<(Arc<Link>, Watch)> {
        let open = |link: Arc<Link>| async move {
            let watch = link.watches.open(key, options, false).await?;
            Ok((link, watch))
        };
        Ok(self.ask(|| "watching".into(), open).await?)
    }

    /// A watch on the end of each of these keys (of one that tells of a release: on its being put), in their order, all over one
    /// connection. May have been there before.
    pub(crate) async fn watch_each(&self, keys: &[&[u8]]) -> Result<(Arc<Link>, Vec<Watch>)> {
        let open = |link: Arc<Link>| async move {
            let all = keys.iter().map(|key| {
                let unwanted = match is_released(key) {
                    true => WatchFilterType::NoDelete,
                    false => WatchFilterType::NoPut,
                };
                let options = WatchOptions::new().with_filters([unwanted]);
                link.watches.open(key, options, true)
            });
            let watches = futures_util::future::try_join_all(all).await?;
            Ok((link, watches))
        };
        Ok(self.ask(|| "watching".into(), open).await?)
    }
}

fn whole_seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// Whether a server answers a (malformed) greeting of TLS as only one that speaks it does.
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

/// Whether a server answers HTTP/2's preface, sent in the clear, with its SETTINGS (RFC 9113, 3.4).
///
/// Asked, because a plain server's answer to a greeting of TLS tells nothing for sure: often it is a reset connection.
async fn speaks_plainly(address: &str) -> bool {
    const PREFACE_AND_SETTINGS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    const SETTINGS: u8 = 4;
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(PREFACE_AND_SETTINGS).await?;
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        std::io::Result::Ok(header[3])
    };
    matches!(timeout(Duration::from_secs(1), ask).await, Ok(Ok(SETTINGS)))
}
