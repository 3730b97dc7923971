//! Sessions: each one task that keeps a connection, and takes the session up again on a new one when it breaks.
//!
//! A connection is given up as soon as it is lost, with all that was asked over it, rather than mended below our feet:
//! then the server has either done what was asked before the next connection is good, or never will.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use zookeeper_client::{Client, Error, SessionInfo, SessionState};

use crate::config::Config;

/// The pauses between attempts to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(500));

/// Why a request did not do what was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The servers answered so; whatever was asked is not done.
    Answered(Error),
    /// There was no answer that tells.
    Silent(String),
}

/// A session as the servers know it, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) id: i64,
    /// As the servers granted it.
    pub(crate) timeout: Duration,
    /// When the latest request was sent that a quorum is known to have taken.
    confirmed: AtomicU64,
    over: AtomicBool,
}

impl Life {
    fn new(client: &Client, begun: BootInstant) -> Arc<Self> {
        Arc::new(Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            confirmed: AtomicU64::new(begun.as_nanos()),
            over: AtomicBool::new(false),
        })
    }

    /// The servers have ended it, and with it all its nodes.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    /// When the latest request was sent that a quorum is known to have taken.
    pub(crate) fn confirmed(&self) -> BootInstant {
        BootInstant::from_nanos(self.confirmed.load(SeqCst))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    client: Client,
    pub(crate) life: Arc<Life>,
    ended: watch::Sender<bool>,
    limit: Duration,
}

impl Link {
    /// The driver's client. Its futures are to be awaited by [`Link::read`] and [`Link::write`]; they are sent when they
    /// are made, in that order.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns when the connection is lost. Ask this before anything else whose sender goes with the connection.
    pub(crate) async fn ended(&self) {
        // The sender lives in `self`.
        drop(self.ended.subscribe().wait_for(|ended| *ended).await);
    }

    /// Does this if the connection is not lost; it is not given up meanwhile. What does not wait may ask a watcher then.
    pub(crate) fn while_open<T>(&self, what: impl FnOnce() -> T) -> Option<T> {
        let ended = self.ended.borrow();
        (!*ended).then(what)
    }

    /// The answer to a request that changes nothing. It ends with the connection: then nobody keeps its other end.
    pub(crate) async fn read<T>(
        &self,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Trouble> {
        match tokio::time::timeout(self.limit, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) if *self.ended.borrow() => {
                Err(Trouble::Silent("the connection was lost".into()))
            }
            Ok(Err(error)) => Err(sort(error)),
            Err(_) => {
                let why = format!("no answer within {:?}", self.limit);
                Err(Trouble::Silent(why))
            }
        }
    }

    /// The answer to a request that a quorum must take, also if it is refused.
    pub(crate) async fn write<T>(
        &self,
        sent: BootInstant,
        request: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Trouble> {
        let answer = self.read(request).await;
        if !matches!(answer, Err(Trouble::Silent(_))) {
            self.life.confirmed.fetch_max(sent.as_nanos(), SeqCst);
        }
        answer
    }
}

fn sort(error: Error) -> Trouble {
    match error {
        Error::NoNode
        | Error::NoAuth
        | Error::BadVersion
        | Error::NoChildrenForEphemerals
        | Error::NodeExists
        | Error::NotEmpty
        | Error::InvalidAcl
        | Error::QuotaExceeded
        | Error::Unimplemented
        | Error::BadArguments(_) => Trouble::Answered(error),
        error => Trouble::Silent(error.to_string()),
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
struct Served {
    link: Arc<Link>,
    task: JoinHandle<()>,
}

/// For how long a server may be silent before another is tried.
pub(crate) fn patience(timeout: Duration) -> Duration {
    (timeout / 3).min(Duration::from_secs(2))
}

/// Connects to one of the servers, each of which is tried once.
async fn connect_once(
    config: &Config,
    timeout: Duration,
    info: Option<SessionInfo>,
    life: Option<&Arc<Life>>,
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
    let life = match life {
        Some(life) if life.id == info.id().0 => Arc::clone(life),
        _ => Life::new(&client, begun),
    };
    let link = Link {
        client,
        life,
        ended: watch::Sender::new(false),
        limit: config.response_timeout,
    };
    let link = Arc::new(link);
    Ok((Served { link, task }, info))
}

/// No shorter session is wanted. The driver gives a connection two fifths of its session to come up, which on a busy
/// machine must not be too little.
const SHORTEST: Duration = Duration::from_secs(1);

/// The shortest and the longest session that the servers grant.
pub(crate) async fn limits(config: &Config) -> Result<(Duration, Duration), Error> {
    let shortest = granted(config, SHORTEST).await?;
    let longest = granted(config, Duration::from_millis(i32::MAX as u64)).await?;
    Ok((shortest, longest))
}

/// What the servers make of a session's timeout.
async fn granted(config: &Config, asked: Duration) -> Result<Duration, Error> {
    let (served, _) = connect_once(config, asked, None, None).await?;
    let granted = served.link.life.timeout;
    close(served).await;
    Ok(granted)
}

/// Ends a session at the servers.
async fn close(served: Served) {
    let Served { link, mut task } = served;
    // The driver ends the session when its last client is dropped; somebody may still be asking over it.
    drop(link);
    if tokio::time::timeout(Duration::from_millis(500), &mut task)
        .await
        .is_err()
    {
        task.abort();
    }
}

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
