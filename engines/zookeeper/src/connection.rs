//! One connection to a server, the session that it belongs to, and what is checked at the first one.
//!
//! A lost connection is given up, with every request on it; the driver must not reconnect it. When the next connection is
//! ready, the server has either executed a request of the old one or never will.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Result as Outcome};
use futures_util::TryFutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use zookeeper_client::{Client, Connector, CreateMode, Error, SessionInfo};

use crate::config::Config;
use crate::error::{Failure, error};
use crate::token_history::Watched;

/// One session as the servers know it, until it expires.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) timeout: Duration,
    confirmed: AtomicU64,
    pub(crate) expired: AtomicBool,
}

impl Session {
    fn new(client: &Client, begun: BootInstant) -> Arc<Self> {
        Arc::new(Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            confirmed: AtomicU64::new(begun.as_nanos()),
            expired: AtomicBool::new(false),
        })
    }

    /// Whether the servers expired it. Its nodes are deleted then.
    pub(crate) fn is_expired(&self) -> bool {
        self.expired.load(SeqCst)
    }

    /// When the latest request that a quorum has certainly processed was sent.
    pub(crate) fn confirmed(&self) -> BootInstant {
        BootInstant::from_nanos(self.confirmed.load(SeqCst))
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) session: Arc<Session>,
    pub(crate) lost: watch::Sender<bool>,
    pub(crate) bases: Watched,
    response_timeout: Duration,
}

impl Connection {
    /// The driver's client. Await its futures with [`Connection::read`] or [`Connection::write`]. A request is sent when
    /// its future is created, so requests go out in that order.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns when the connection is lost.
    pub(crate) async fn lost(&self) {
        // The sender lives as long as `self`.
        drop(self.lost.subscribe().wait_for(|lost| *lost).await);
    }

    /// Awaits watchers of this connection; `None` if the connection is lost first. A watcher must not be polled after that.
    pub(crate) async fn unless_lost<T>(&self, watchers: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.lost() => None,
            changed = watchers => Some(changed),
        }
    }

    /// Runs `f` if the connection is not lost, and keeps it from being given up meanwhile. `f` may poll a watcher.
    pub(crate) fn while_open<T>(&self, f: impl FnOnce() -> T) -> Option<T> {
        let lost = self.lost.borrow();
        (!*lost).then(f)
    }

    /// Awaits the reply to a read request, at most for the response timeout and the life of the connection.
    pub(crate) async fn read<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.response_timeout, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if *self.lost.borrow() => {
                Err(Failure::Unanswered("the connection was lost".into()))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => {
                let why = format!("no answer within {:?}", self.response_timeout);
                Err(Failure::Unanswered(why))
            }
        }
    }

    /// Awaits the reply to a write request that was sent at `sent`. A quorum processes it even when it is refused, so any
    /// reply confirms the session.
    pub(crate) async fn write<T>(
        &self,
        sent: BootInstant,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let answer = self.read(request).await;
        if !matches!(answer, Err(Failure::Unanswered(_))) {
            self.session.confirmed.fetch_max(sent.as_nanos(), SeqCst);
        }
        answer
    }
}

/// Catches the task that the driver spawns for a connection, so that the task can be aborted.
#[derive(Default)]
struct Catcher(Mutex<Option<JoinHandle<()>>>);

impl Catcher {
    fn take(&self) -> Option<JoinHandle<()>> {
        self.0.lock().take()
    }
}

impl spawns_core::Spawn for Catcher {
    fn spawn(&self, task: spawns_core::Task) {
        let spawned = tokio::spawn(Box::into_pin(task.future));
        let before = self.0.lock().replace(spawned);
        debug_assert!(
            before.is_none(),
            "the driver spawns one task per connection"
        );
    }
}

impl Drop for Catcher {
    fn drop(&mut self) {
        if let Some(task) = self.take() {
            task.abort();
        }
    }
}

/// A connection with the driver's task that serves it.
pub(crate) struct Served {
    pub(crate) connection: Arc<Connection>,
    pub(crate) task: JoinHandle<()>,
}

/// How long a server may be silent before the next one is tried.
pub(crate) fn patience(timeout: Duration) -> Duration {
    (timeout / 3).min(Duration::from_secs(2))
}

/// Connects to the first server that answers; each is tried once. With `info` it resumes that session.
pub(crate) async fn connect_once(
    config: &Config,
    timeout: Duration,
    info: Option<SessionInfo>,
    session: Option<&Arc<Session>>,
) -> Result<(Served, SessionInfo), Error> {
    let mut connector = config.connector.clone();
    connector = connector
        .with_session_timeout(timeout)
        .with_connection_timeout(patience(timeout))
        .with_fail_eagerly();
    if let Some(info) = info {
        connector = connector.with_session(info);
    }
    let begun = Clock::Boot.now();
    let catcher = Catcher::default();
    let client = caught(&catcher, connecting(connector, config)).await?;
    let task = catcher.take().ok_or(Error::ClientClosed)?;
    let info = client.session().clone();
    let session = match session {
        Some(session) if session.id == info.id().0 => Arc::clone(session),
        _ => Session::new(&client, begun),
    };
    let connection = Connection {
        client,
        session,
        lost: watch::Sender::new(false),
        bases: Watched::default(),
        response_timeout: config.response_timeout,
    };
    let connection = Arc::new(connection);
    Ok((Served { connection, task }, info))
}

/// Connects, with TLS if the options ask for it.
async fn connecting(connector: Connector, config: &Config) -> Result<Client, Error> {
    #[cfg(feature = "tls")]
    if config.secure {
        return connector.secure_connect(&config.servers).await;
    }
    connector.connect(&config.servers).await
}

/// Polls a future so that `catcher` gets the task that it spawns.
async fn caught<T>(catcher: &Catcher, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _scope = spawns_core::enter(catcher);
        future.as_mut().poll(context)
    })
    .await
}

/// Closes the connection and ends its session on the servers.
pub(crate) async fn close(served: Served) {
    let Served {
        connection,
        mut task,
    } = served;
    // The driver ends the session when the last client is dropped; a request may still hold one.
    drop(connection);
    if tokio::time::timeout(Duration::from_millis(500), &mut task)
        .await
        .is_err()
    {
        task.abort();
    }
}

/// Creates the chroot if it is missing, and checks that this user may lock there.
pub(crate) async fn prepare(config: &Config, connection: &Connection) -> Outcome<()> {
    let failure = |failure| error(config, "checking its rights", failure);
    if config.inspect_only {
        // A missing chroot is fine here: then there are no locks.
        let list = connection.client().list_children(config.root_path());
        return match connection.read(list).await {
            Ok(_) | Err(Failure::Refused(Error::NoNode)) => Ok(()),
            Err(refused) => Err(failure(refused)),
        };
    }
    create_root(config, connection).await.map_err(failure)?;
    let probe = format!(
        "{}/fencelock-probe-{:x}",
        config.root, connection.session.id
    );
    let options = CreateMode::Ephemeral.with_acls(config.acls());
    let mut writer = connection.client().new_multi_writer();
    // In one transaction, so that no other client sees the probe.
    let added = writer
        .add_create(&probe, b"", &options)
        .and_then(|()| writer.add_delete(&probe, None));
    added.map_err(|refusal| failure(Failure::Refused(refusal)))?;
    let commit = writer.commit();
    let list = connection.client().list_children(config.root_path());
    let written = connection.write(Clock::Boot.now(), commit.map_err(Error::from));
    let (written, listed) = tokio::join!(written, connection.read(list));
    written.map_err(failure)?;
    listed.map(drop).map_err(failure)
}

pub(crate) async fn create_root(config: &Config, connection: &Connection) -> Result<(), Failure> {
    if config.root.is_empty() {
        return Ok(());
    }
    let options = CreateMode::Persistent.with_acls(config.acls());
    // A user with rights at the chroot may have none above it.
    let exists = connection
        .read(connection.client().check_stat(&config.root))
        .await?;
    if exists.is_none() {
        connection
            .read(connection.client().mkdir(&config.root, &options))
            .await?;
    }
    Ok(())
}
