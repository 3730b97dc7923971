//! The cluster, through one of its members. The client keeps a member while it answers, and then looks for another one.
//!
//! It uses one member at a time, the first that answers and has a leader. A channel balanced over all members would send every
//! third request to a member that is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::Error as Driver;
use fencelock_core::support::Mutex;
use fencelock_core::{Error, Result};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep, timeout};

use crate::config::Config;
use crate::connection::{Connection, OpenError, Turn};
use crate::error::{RequestError, is_refusal};
use crate::single_flight::SingleFlight;

/// The pause before the next attempt while no member has a leader.
const ELECTION: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) config: Config,
    current: Mutex<Option<Arc<Connection>>>,
    opening: SingleFlight,
    closed: AtomicBool,
    connections: AtomicU64,
    seen: AtomicI64,
}

impl Cluster {
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let cluster = Self {
            config,
            current: Mutex::default(),
            opening: SingleFlight::default(),
            closed: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            seen: AtomicI64::new(0),
        };
        let connection = cluster.find(cluster.config.connect_timeout).await?;
        cluster.note_revision(connection.revision);
        *cluster.current.lock() = Some(connection);
        Ok(cluster)
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if let Some(connection) = self.current.lock().take() {
            connection.give_up();
        }
    }

    fn unbroken(&self) -> Option<Arc<Connection>> {
        let current = self.current.lock();
        current
            .as_ref()
            .filter(|connection| !connection.is_broken())
            .cloned()
    }

    /// Whether the connection with this number is no longer in use.
    pub(crate) fn was_replaced(&self, number: u64) -> bool {
        self.unbroken().is_none_or(|now| now.number != number)
    }

    /// The current connection. Connects again if there is none.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        if let Some(connection) = self.unbroken() {
            return Ok(connection);
        }
        let config = &self.config;
        let limit = config.connect_timeout.min(config.response_timeout);
        let opening = self.opening.begin(limit).await;
        let mut opening = opening.ok_or_else(|| self.no_answer("connecting", limit))?;
        if self.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed);
        }
        if let Some(connection) = self.unbroken() {
            return Ok(connection);
        }
        opening.inherit(&config.store)?;
        let found = self.find(limit).await.map_err(|error| match error {
            // The configuration was right before and may be right again: the users of a cluster that is being rebuilt do not
            // exist yet.
            Error::Config { store, why, .. } => Error::unavailable(store, "connecting again", why),
            other => other,
        });
        let connection = found.inspect_err(|error| opening.fail(error))?;
        if connection.revision < self.seen() {
            self.note_restore(connection.revision);
        }
        *self.current.lock() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// The highest revision that was seen. Every later change has a higher one, unless a snapshot was restored.
    pub(crate) fn seen(&self) -> i64 {
        self.seen.load(Ordering::SeqCst)
    }

    pub(crate) fn note_revision(&self, revision: i64) {
        self.seen.fetch_max(revision, Ordering::SeqCst);
    }

    /// Notes a revision that is lower than one that was seen: a snapshot was restored.
    pub(crate) fn note_restore(&self, revision: i64) {
        tracing::warn!(store = %self.config.store, "the cluster's revisions went back: a snapshot was restored");
        self.seen.store(revision, Ordering::SeqCst);
    }

    /// Gives up a connection. The next request opens another one.
    fn give_up(&self, connection: &Arc<Connection>) {
        connection.give_up();
        let mut current = self.current.lock();
        if current
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(now, connection))
        {
            *current = None;
        }
    }

    /// Connects to the first member that answers and has a leader.
    async fn find(&self, limit: Duration) -> Result<Arc<Connection>> {
        let deadline = Instant::now() + limit;
        loop {
            let failed = match timeout(deadline - Instant::now(), self.race()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(failed)) => failed,
                Err(_) => return Err(self.no_answer("connecting", limit)),
            };
            if !failed.no_leader || Instant::now() + ELECTION >= deadline {
                return Err(failed.error);
            }
            sleep(ELECTION).await;
        }
    }

    /// Tries all members at once.
    async fn race(&self) -> Result<Arc<Connection>, OpenError> {
        let racing = self.config.endpoints.iter().map(|endpoint| {
            let number = self.connections.fetch_add(1, Ordering::SeqCst);
            Connection::open(&self.config, endpoint, number)
        });
        let mut racing: FuturesUnordered<_> = racing.collect();
        let mut worst: Option<OpenError> = None;
        while let Some(opened) = racing.next().await {
            let failed = match opened {
                Ok(connection) => return Ok(Arc::new(connection)),
                Err(failed) => failed,
            };
            // An error that an operator must fix is more useful than the error of a member that is down.
            if worst
                .as_ref()
                .is_none_or(|worst| worst.error.is_retryable())
            {
                worst = Some(failed);
            }
        }
        Err(worst.unwrap_or(OpenError {
            error: Error::Closed,
            no_leader: false,
        }))
    }

    pub(crate) fn no_answer(&self, action: &str, limit: Duration) -> Error {
        let cause = format!("no answer within {limit:?}");
        Error::unavailable(&self.config.store, action, cause)
    }

    /// Sends one request when it has its turn, and awaits the reply within the timeout.
    pub(crate) async fn request<T, F>(
        &self,
        action: impl Fn() -> String,
        send: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let (connection, _turn) = self.turn(&action).await.map_err(RequestError::not_sent)?;
        self.send(&connection, action, send).await
    }

    /// Sends a request without waiting for its turn, for requests that keep sessions alive: they must not wait behind thousands
    /// of others.
    pub(crate) async fn request_at_once<T, F>(
        &self,
        action: impl Fn() -> String,
        send: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let connection = self.connection().await.map_err(RequestError::not_sent)?;
        self.send(&connection, action, send).await
    }

    /// The current connection, as soon as it has room for another request. If that connection is given up meanwhile, tries the
    /// next one, once.
    async fn turn(&self, action: impl Fn() -> String) -> Result<(Arc<Connection>, Turn)> {
        for _ in 0..2 {
            let connection = self.connection().await?;
            if let Some(turn) = connection.turn().await {
                return Ok((connection, turn));
            }
        }
        Err(self.no_answer(&action(), self.config.response_timeout))
    }

    async fn send<T, F>(
        &self,
        connection: &Arc<Connection>,
        action: impl Fn() -> String,
        send: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T, RequestError>
    where
        F: Future<Output = Result<T, Driver>>,
    {
        let limit = self.config.response_timeout;
        match timeout(limit, send(Arc::clone(connection))).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                if !is_refusal(&error) {
                    self.give_up(connection);
                }
                let store = &self.config.store;
                Err(RequestError::from_driver(store, &action(), &error))
            }
            Err(_) => {
                self.give_up(connection);
                let error = self.no_answer(&action(), limit);
                Err(RequestError::no_reply(error))
            }
        }
    }
}
