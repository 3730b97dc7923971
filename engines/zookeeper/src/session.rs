//! Sessions.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use zookeeper_client::{Error, SessionInfo, SessionState};

use crate::config::Config;
use crate::connection::{Connection, Served, Session, close, connect_once};
use crate::error::Failure;

/// The pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// Whom sessions tell what becomes of them.
#[derive(Clone, Debug)]
pub(crate) struct SessionEvents {
    /// Of lives that the servers ended.
    pub(crate) expired: mpsc::UnboundedSender<Arc<Session>>,
    /// Of connections over which a life goes on.
    pub(crate) resumed: mpsc::UnboundedSender<Arc<Connection>>,
}

/// A session that is kept up: when its life is over it begins another.
#[derive(Debug)]
pub(crate) struct ManagedSession {
    /// What was asked for.
    pub(crate) timeout: Duration,
    limit: Duration,
    connection: watch::Receiver<Option<Arc<Connection>>>,
    why: Arc<Mutex<String>>,
    orders: mpsc::Sender<bool>,
    task: AbortHandle,
}

impl ManagedSession {
    /// Opens one.
    pub(crate) async fn open(
        config: &Arc<Config>,
        timeout: Duration,
        listeners: SessionEvents,
    ) -> Result<Arc<Self>, Error> {
        let (served, info) = connect_once(config, timeout, None, None).await?;
        let (sender, connection) = watch::channel(Some(Arc::clone(&served.connection)));
        let why = Arc::<Mutex<String>>::default();
        let (orders, ordered) = mpsc::channel(1);
        let keeper = SessionTask {
            config: Arc::clone(config),
            timeout,
            connection: sender,
            why: Arc::clone(&why),
            listeners,
        };
        let task = tokio::spawn(keeper.run(served, info, ordered)).abort_handle();
        Ok(Arc::new(Self {
            timeout,
            limit: config.response_timeout,
            connection,
            why,
            orders,
            task,
        }))
    }

    /// The connection; waits a while for one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = &*self.connection.borrow() {
            return Ok(Arc::clone(connection));
        }
        let waited = tokio::time::timeout(self.limit, self.any_connection()).await;
        waited.map_err(|_| {
            let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
            let why = if why.is_empty() {
                "no server answers"
            } else {
                &why
            };
            Failure::Unanswered(format!("no connection within {:?}: {why}", self.limit))
        })
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn any_connection(&self) -> Arc<Connection> {
        let mut connection = self.connection.clone();
        let found = connection.wait_for(Option::is_some).await;
        match found.ok().and_then(|found| found.clone()) {
            Some(connection) => connection,
            // The session is closed.
            None => std::future::pending().await,
        }
    }

    /// Whether there is a connection just now.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// Ends it; at the servers, too, unless its nodes are to stay until its timeout.
    pub(crate) async fn close(&self, at_servers: bool) {
        if self.orders.send(at_servers).await.is_ok() {
            self.orders.closed().await;
        }
    }
}

impl Drop for ManagedSession {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a session.
struct SessionTask {
    config: Arc<Config>,
    timeout: Duration,
    connection: watch::Sender<Option<Arc<Connection>>>,
    why: Arc<Mutex<String>>,
    listeners: SessionEvents,
}

/// Ends the serving task with the keeper's own, however that ends.
struct ServedGuard(Option<Served>);

impl ServedGuard {
    /// Nothing comes over it any more, and nobody waits for what would have come.
    fn give_up(&mut self) {
        if let Some(Served { connection, task }) = self.0.take() {
            connection.lost.send_replace(true);
            task.abort();
        }
    }
}

impl Drop for ServedGuard {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl SessionTask {
    async fn run(self, served: Served, mut info: SessionInfo, mut orders: mpsc::Receiver<bool>) {
        let mut serving = ServedGuard(Some(served));
        loop {
            let session = match &serving.0 {
                Some(served) => Arc::clone(&served.connection.session),
                None => return,
            };
            let order = tokio::select! {
                order = orders.recv() => order.or(Some(false)),
                () = until_lost(&serving) => None,
            };
            self.connection.send_replace(None);
            if let Some(at_servers) = order {
                match serving.0.take() {
                    Some(served) if at_servers => {
                        served.connection.lost.send_replace(true);
                        close(served).await;
                    }
                    other => serving.0 = other,
                }
                return;
            }
            serving.give_up();
            let again = tokio::select! {
                _ = orders.recv() => return,
                again = self.connect_again(info, Arc::clone(&session)) => again,
            };
            info = again.1;
            let connection = Arc::clone(&again.0.connection);
            if Arc::ptr_eq(&connection.session, &session) {
                // Nobody listens any more if the engine is gone.
                let _ = self.listeners.resumed.send(Arc::clone(&connection));
            }
            self.connection.send_replace(Some(connection));
            serving.0 = Some(again.0);
        }
    }

    /// Takes the session up again, or begins a new one if the servers have ended it.
    async fn connect_again(
        &self,
        info: SessionInfo,
        session: Arc<Session>,
    ) -> (Served, SessionInfo) {
        let mut before = Some((info, session));
        let mut pause = Duration::ZERO;
        loop {
            let connected = {
                let info = before.as_ref().map(|(info, _)| info.clone());
                let session = before.as_ref().map(|(_, session)| session);
                connect_once(&self.config, self.timeout, info, session).await
            };
            match connected {
                Ok(connected) => return connected,
                Err(Error::SessionExpired) => {
                    if let Some((_, session)) = before.take() {
                        tracing::debug!(managed = session.id, "the servers ended a session");
                        session.expired.store(true, SeqCst);
                        // Nobody listens any more if the engine is gone.
                        let _ = self.listeners.expired.send(session);
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to ZooKeeper; trying again");
                    *self.why.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
                }
            }
            pause = (pause * 2).clamp(PAUSES.0, PAUSES.1);
            // Not in step with others.
            let jitter = Duration::from_millis(fastrand::u64(0..=pause.as_millis() as u64 / 2));
            tokio::time::sleep(pause / 2 + jitter).await;
        }
    }
}

async fn until_lost(serving: &ServedGuard) {
    let Some(served) = &serving.0 else { return };
    let mut states = served.connection.client.state_watcher();
    // The driver connects again by itself, perhaps before anybody has looked: any change ends the connection.
    if states.state() == SessionState::SyncConnected {
        states.changed().await;
    }
}
