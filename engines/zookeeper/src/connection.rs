//! One connection to a server.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Result as Outcome};
use futures_util::TryFutureExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use zookeeper_client::{Client, CreateMode, Error, SessionInfo};

use crate::config::Config;
use crate::error::{Failure, classify, error};

/// A session as the servers know it, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    /// As the servers granted it.
    pub(crate) timeout: Duration,
    /// When the latest request was sent that a quorum is known to have taken.
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

    /// The servers have ended it, and with it all its nodes.
    pub(crate) fn is_expired(&self) -> bool {
        self.expired.load(SeqCst)
    }

    /// When the latest request was sent that a quorum is known to have taken.
    pub(crate) fn confirmed(&self) -> BootInstant {
        BootInstant::from_nanos(self.confirmed.load(SeqCst))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) session: Arc<Session>,
    pub(crate) lost: watch::Sender<bool>,
    limit: Duration,
}

impl Connection {
    /// The driver's client. Its futures are to be awaited by [`Link::read`] and [`Link::write`]; they are sent when they
    /// are made, in that order.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns when the connection is lost. Ask this before anything else whose sender goes with the connection.
    pub(crate) async fn lost(&self) {
        // The sender lives in `self`.
        drop(self.lost.subscribe().wait_for(|lost| *lost).await);
    }

    /// Does this if the connection is not lost; it is not given up meanwhile. What does not wait may ask a watcher then.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        let lost = self.lost.borrow();
        (!*lost).then(what)
    }

    /// The answer to a request that changes nothing. It ends with the connection: then nobody keeps its other end.
    pub(crate) async fn read<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if *self.lost.borrow() => {
                Err(Failure::Unanswered("the connection was lost".into()))
            }
            Ok(Err(error)) => Err(classify(error)),
            Err(_) => {
                let why = format!("no answer within {:?}", self.limit);
                Err(Failure::Unanswered(why))
            }
        }
    }

    /// The answer to a request that a quorum must take, also if it is refused.
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

/// Takes up the task that the driver would start, so that it can be ended.
#[derive(Default)]
struct Catcher(Mutex<Option<JoinHandle<()>>>);

impl Catcher {
    fn take(&self) -> Option<JoinHandle<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl spawns_core::Spawn for Catcher {
    fn spawn(&self, task: spawns_core::Task) {
        let spawned = tokio::spawn(Box::into_pin(task.future));
        let before = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .replace(spawned);
        debug_assert!(before.is_none(), "one task serves one connection");
    }
}

impl Drop for Catcher {
    fn drop(&mut self) {
        if let Some(task) = self.take() {
            task.abort();
        }
    }
}

/// A connection with the task that serves it.
pub(crate) struct Served {
    pub(crate) connection: Arc<Connection>,
    pub(crate) task: JoinHandle<()>,
}

/// For how long a server may be silent before another is tried.
pub(crate) fn patience(timeout: Duration) -> Duration {
    (timeout / 3).min(Duration::from_secs(2))
}

/// Connects to one of the servers, each of which is tried once.
pub(crate) async fn connect_once(
    config: &Config,
    timeout: Duration,
    info: Option<SessionInfo>,
    session: Option<&Arc<Session>>,
) -> Result<(Served, SessionInfo), Error> {
    let mut connector = Client::connector()
        .with_session_timeout(timeout)
        .with_connection_timeout(patience(timeout))
        .with_fail_eagerly();
    if let Some(digest) = &config.digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    if let Some(info) = info {
        connector = connector.with_session(info);
    }
    let begun = Clock::Boot.now();
    let catcher = Catcher::default();
    #[cfg(feature = "tls")]
    let connecting = {
        let secure = config.tls.is_some();
        if let Some(tls) = &config.tls {
            connector = connector.with_tls(tls.clone());
        }
        let servers = &config.servers;
        async move {
            match secure {
                true => connector.secure_connect(servers).await,
                false => connector.connect(servers).await,
            }
        }
    };
    #[cfg(not(feature = "tls"))]
    let connecting = connector.connect(&config.servers);
    let mut connecting = pin!(connecting);
    let client = poll_fn(|context| {
        let _scope = spawns_core::enter(&catcher);
        connecting.as_mut().poll(context)
    })
    .await?;
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
        limit: config.response_timeout,
    };
    let connection = Arc::new(connection);
    Ok((Served { connection, task }, info))
}

/// Ends a session at the servers.
pub(crate) async fn close(served: Served) {
    let Served {
        connection,
        mut task,
    } = served;
    // The driver ends the session when its last client is dropped; somebody may still be asking over it.
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
        // Without the chroot there are no locks.
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

/// Creates the nodes of the chroot that are missing.
pub(crate) async fn create_root(config: &Config, connection: &Connection) -> Result<(), Failure> {
    if config.root.is_empty() {
        return Ok(());
    }
    let options = CreateMode::Persistent.with_acls(config.acls());
    // A user of the chroot need not have rights above it.
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
