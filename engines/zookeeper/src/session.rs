//! Managed sessions. Each has a task that keeps it connected. The task resumes the session over a new connection when the old one
//! breaks, and begins a new session when the servers have expired it.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use fencelock_core::support::{Backoff, Mutex};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use zookeeper_client::{Error, SessionInfo, SessionState};

use crate::config::Config;
use crate::connection::{Connection, Served, Session, close, connect_once};
use crate::error::Failure;

/// The shortest and the longest pause between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// The servers expired the session.
    Expired(Arc<Session>),
    /// The session was resumed over this connection.
    Resumed(Arc<Connection>),
}

/// The channel of the session tasks' events.
pub(crate) type SessionEvents = mpsc::UnboundedSender<SessionEvent>;

/// A session that is kept connected, and replaced when it expires.
#[derive(Debug)]
pub(crate) struct ManagedSession {
    /// The requested timeout.
    pub(crate) timeout: Duration,
    response_timeout: Duration,
    connection: watch::Receiver<Option<Arc<Connection>>>,
    last_error: Arc<Mutex<String>>,
    /// Asks the task to close; `true` ends the session on the servers, too.
    close_requests: mpsc::Sender<bool>,
    task: AbortHandle,
}

impl ManagedSession {
    pub(crate) async fn open(
        config: &Arc<Config>,
        timeout: Duration,
        events: SessionEvents,
    ) -> Result<Arc<Self>, Error> {
        let (served, info) = connect_once(config, timeout, None, None).await?;
        let (sender, connection) = watch::channel(Some(Arc::clone(&served.connection)));
        let last_error = Arc::<Mutex<String>>::default();
        let (close_requests, requested) = mpsc::channel(1);
        let task = SessionTask {
            config: Arc::clone(config),
            timeout,
            connection: sender,
            last_error: Arc::clone(&last_error),
            events,
        };
        let task = tokio::spawn(task.run(served, info, requested)).abort_handle();
        Ok(Arc::new(Self {
            timeout,
            response_timeout: config.response_timeout,
            connection,
            last_error,
            close_requests,
            task,
        }))
    }

    /// The connection. If there is none, waits for one, at most for the response timeout.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if let Some(connection) = &*self.connection.borrow() {
            return Ok(Arc::clone(connection));
        }
        let waited = tokio::time::timeout(self.response_timeout, self.any_connection()).await;
        waited.map_err(|_| {
            let why = self.last_error.lock();
            let why = match why.as_str() {
                "" => "no server answers",
                why => why,
            };
            Failure::Unanswered(format!(
                "no connection within {:?}: {why}",
                self.response_timeout
            ))
        })
    }

    /// The connection. If there is none, waits for one without limit.
    pub(crate) async fn any_connection(&self) -> Arc<Connection> {
        let mut connection = self.connection.clone();
        let found = connection.wait_for(Option::is_some).await;
        match found.ok().and_then(|found| found.clone()) {
            Some(connection) => connection,
            // The session is closed.
            None => std::future::pending().await,
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection.borrow().is_some()
    }

    /// Ends the task. Unless the session ends `at_servers`, its nodes stay until its timeout.
    pub(crate) async fn close(&self, at_servers: bool) {
        if self.close_requests.send(at_servers).await.is_ok() {
            self.close_requests.closed().await;
        }
    }
}

impl Drop for ManagedSession {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct SessionTask {
    config: Arc<Config>,
    timeout: Duration,
    connection: watch::Sender<Option<Arc<Connection>>>,
    last_error: Arc<Mutex<String>>,
    events: SessionEvents,
}

/// Aborts the driver's task together with the session's task.
struct ServedGuard(Option<Served>);

impl ServedGuard {
    /// Ends all requests of the connection without a reply.
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
    async fn run(
        self,
        served: Served,
        mut info: SessionInfo,
        mut close_requests: mpsc::Receiver<bool>,
    ) {
        let mut serving = ServedGuard(Some(served));
        loop {
            let session = match &serving.0 {
                Some(served) => Arc::clone(&served.connection.session),
                None => return,
            };
            let close_request = tokio::select! {
                at_servers = close_requests.recv() => at_servers.or(Some(false)),
                () = until_lost(&serving) => None,
            };
            self.connection.send_replace(None);
            if let Some(at_servers) = close_request {
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
            let (served, next_info) = tokio::select! {
                _ = close_requests.recv() => return,
                reconnected = self.reconnect(info, Arc::clone(&session)) => reconnected,
            };
            info = next_info;
            let connection = Arc::clone(&served.connection);
            if Arc::ptr_eq(&connection.session, &session) {
                // Sending fails if the engine is gone.
                let _ = self
                    .events
                    .send(SessionEvent::Resumed(Arc::clone(&connection)));
            }
            self.connection.send_replace(Some(connection));
            serving.0 = Some(served);
        }
    }

    /// Resumes the session, or begins a new one if the servers expired it.
    async fn reconnect(&self, info: SessionInfo, session: Arc<Session>) -> (Served, SessionInfo) {
        let mut before = Some((info, session));
        let mut pauses = Backoff::new(PAUSES.0, PAUSES.1);
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
                        tracing::debug!(session = session.id, "the servers expired a session");
                        session.expired.store(true, SeqCst);
                        // Sending fails if the engine is gone.
                        let _ = self.events.send(SessionEvent::Expired(session));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no connection to ZooKeeper; trying again");
                    *self.last_error.lock() = error.to_string();
                }
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
    }
}

async fn until_lost(serving: &ServedGuard) {
    let Some(served) = &serving.0 else { return };
    let mut states = served.connection.client.state_watcher();
    // The driver reconnects by itself, perhaps before this task runs. So any change of state means that the connection was
    // lost.
    if states.state() == SessionState::SyncConnected {
        states.changed().await;
    }
}
