//! Sessions.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use zookeeper_client::{Error, SessionInfo, SessionState};

use crate::config::Config;
use crate::connection::{Life, Link, Served, close, connect_once};
use crate::error::Trouble;

/// The pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// Whom sessions tell what becomes of them.
#[derive(Clone, Debug)]
pub(crate) struct Listeners {
    /// Of lives that the servers ended.
    pub(crate) ended: mpsc::UnboundedSender<Arc<Life>>,
    /// Of connections over which a life goes on.
    pub(crate) resumed: mpsc::UnboundedSender<Arc<Link>>,
}

/// A session that is kept up: when its life is over it begins another.
#[derive(Debug)]
pub(crate) struct Session {
    /// What was asked for.
    pub(crate) timeout: Duration,
    limit: Duration,
    link: watch::Receiver<Option<Arc<Link>>>,
    why: Arc<Mutex<String>>,
    orders: mpsc::Sender<bool>,
    task: AbortHandle,
}

impl Session {
    /// Opens one.
    pub(crate) async fn open(
        config: &Arc<Config>,
        timeout: Duration,
        listeners: Listeners,
    ) -> Result<Arc<Self>, Error> {
        let (served, info) = connect_once(config, timeout, None, None).await?;
        let (sender, link) = watch::channel(Some(Arc::clone(&served.link)));
        let why = Arc::<Mutex<String>>::default();
        let (orders, ordered) = mpsc::channel(1);
        let keeper = Keeper {
            config: Arc::clone(config),
            timeout,
            link: sender,
            why: Arc::clone(&why),
            listeners,
        };
        let task = tokio::spawn(keeper.run(served, info, ordered)).abort_handle();
        Ok(Arc::new(Self {
            timeout,
            limit: config.response_timeout,
            link,
            why,
            orders,
            task,
        }))
    }

    /// The connection; waits a while for one.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Trouble> {
        if let Some(link) = &*self.link.borrow() {
            return Ok(Arc::clone(link));
        }
        let waited = tokio::time::timeout(self.limit, self.any_link()).await;
        waited.map_err(|_| {
            let why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
            let why = if why.is_empty() {
                "no server answers"
            } else {
                &why
            };
            Trouble::Silent(format!("no connection within {:?}: {why}", self.limit))
        })
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn any_link(&self) -> Arc<Link> {
        let mut link = self.link.clone();
        let found = link.wait_for(Option::is_some).await;
        match found.ok().and_then(|found| found.clone()) {
            Some(link) => link,
            // The session is closed.
            None => std::future::pending().await,
        }
    }

    /// Whether there is a connection just now.
    pub(crate) fn has_link(&self) -> bool {
        self.link.borrow().is_some()
    }

    /// Ends it; at the servers, too, unless its nodes are to stay until its timeout.
    pub(crate) async fn close(&self, at_servers: bool) {
        if self.orders.send(at_servers).await.is_ok() {
            self.orders.closed().await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The task of a session.
struct Keeper {
    config: Arc<Config>,
    timeout: Duration,
    link: watch::Sender<Option<Arc<Link>>>,
    why: Arc<Mutex<String>>,
    listeners: Listeners,
}

/// Ends the serving task with the keeper's own, however that ends.
struct Serving(Option<Served>);

impl Serving {
    /// Nothing comes over it any more, and nobody waits for what would have come.
    fn give_up(&mut self) {
        if let Some(Served { link, task }) = self.0.take() {
            link.ended.send_replace(true);
            task.abort();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Keeper {
    async fn run(self, served: Served, mut info: SessionInfo, mut orders: mpsc::Receiver<bool>) {
        let mut serving = Serving(Some(served));
        loop {
            let life = match &serving.0 {
                Some(served) => Arc::clone(&served.link.life),
                None => return,
            };
            let order = tokio::select! {
                order = orders.recv() => order.or(Some(false)),
                () = until_lost(&serving) => None,
            };
            self.link.send_replace(None);
            if let Some(at_servers) = order {
                match serving.0.take() {
                    Some(served) if at_servers => {
                        served.link.ended.send_replace(true);
                        close(served).await;
                    }
                    other => serving.0 = other,
                }
                return;
            }
            serving.give_up();
            let again = tokio::select! {
                _ = orders.recv() => return,
                again = self.connect_again(info, Arc::clone(&life)) => again,
            };
            info = again.1;
            let link = Arc::clone(&again.0.link);
            if Arc::ptr_eq(&link.life, &life) {
                // Nobody listens any more if the engine is gone.
                let _ = self.listeners.resumed.send(Arc::clone(&link));
            }
            self.link.send_replace(Some(link));
            serving.0 = Some(again.0);
        }
    }

    /// Takes the session up again, or begins a new one if the servers have ended it.
    async fn connect_again(&self, info: SessionInfo, life: Arc<Life>) -> (Served, SessionInfo) {
        let mut before = Some((info, life));
        let mut pause = Duration::ZERO;
        loop {
            let connected = {
                let info = before.as_ref().map(|(info, _)| info.clone());
                let life = before.as_ref().map(|(_, life)| life);
                connect_once(&self.config, self.timeout, info, life).await
            };
            match connected {
                Ok(connected) => return connected,
                Err(Error::SessionExpired) => {
                    if let Some((_, life)) = before.take() {
                        tracing::debug!(session = life.id, "the servers ended a session");
                        life.over.store(true, SeqCst);
                        // Nobody listens any more if the engine is gone.
                        let _ = self.listeners.ended.send(life);
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

async fn until_lost(serving: &Serving) {
    let Some(served) = &serving.0 else { return };
    let mut states = served.link.client.state_watcher();
    // The driver connects again by itself, perhaps before anybody has looked: any change ends the connection.
    if states.state() == SessionState::SyncConnected {
        states.changed().await;
    }
}
