//! The engine itself: opened from a URL, and what the core asks of it.

use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Engine, Event, EventSource, EventStream, Evict, Grant, HeldClaim, HolderView,
    Inspect, Leave, LockView, Page, Place, Renewal, Standing, Withdrawn,
};
use fencelock_core::{
    Clock, Durability, Error, Finding, LeaseKind, LockName, Order, Promises, Purpose, Result,
    StoreUrl, Token, Wake,
};
use futures_util::TryFutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use zookeeper_client::{CreateMode, Error as Refusal};

use crate::config::Config;
use crate::hold;
use crate::session::{self, Life, Listeners, Session, Trouble};
use crate::store::{self, Store};
use crate::undone;

/// A ttl beyond this is a mistake.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// The default ttl of a lock.
const USUAL: Duration = Duration::from_secs(30);

/// The engine for ZooKeeper.
pub struct ZooKeeper {
    store: Arc<Store>,
    promises: Promises,
    events: EventSource,
    tasks: [AbortHandle; 3],
}

impl ZooKeeper {
    /// Opens the store that a URL names.
    ///
    /// # Errors
    /// [`Error::Config`] for a URL that cannot be used, [`Error::Unavailable`] if no server answers within
    /// `connect-timeout`, [`Error::Refused`] if this user has no rights at the chroot.
    ///
    /// # Cancel safety
    /// May be dropped: a session that was begun ends by itself.
    pub async fn open(url: StoreUrl) -> Result<Self> {
        let config = Arc::new(Config::from_url(url)?);
        let limit = config.connect_timeout;
        match tokio::time::timeout(limit, Self::connect(&config)).await {
            Ok(opened) => opened,
            Err(_) => {
                let why = format!("no server answered within {limit:?}");
                Err(Error::unavailable(&config.store, "connecting", why))
            }
        }
    }

    async fn connect(config: &Arc<Config>) -> Result<Self> {
        let failed = |error: Refusal| {
            let trouble = Trouble::Silent(match error {
                Refusal::NoHosts => "no server took the connection".into(),
                error => error.to_string(),
            });
            store::error(config, "connecting", trouble)
        };
        let limits = retry(|| Box::pin(session::limits(config)))
            .await
            .map_err(failed)?;
        let (ended, ends) = mpsc::unbounded_channel();
        let (resumed, resumes) = mpsc::unbounded_channel();
        let listeners = Listeners { ended, resumed };
        let window = config.window.clamp(limits.0, limits.1);
        let line = retry(|| Box::pin(Session::open(config, window, listeners.clone()))).await;
        let line = line.map_err(failed)?;
        prepare(config, &line).await?;
        let (tell, events) = mpsc::unbounded_channel();
        let (watch, watched) = mpsc::unbounded_channel();
        let store = Store::new(Arc::clone(config), line, limits, listeners, tell, watch);
        let store = Arc::new(store);
        let tasks = [
            tokio::spawn(hold::watch(Arc::clone(&store), watched)).abort_handle(),
            tokio::spawn(hold::tidy(Arc::clone(&store))).abort_handle(),
            tokio::spawn(undone::watch(Arc::clone(&store), resumes)).abort_handle(),
        ];
        Ok(Self {
            promises: promises(limits, window),
            events: EventSource::of(reports(Arc::clone(&store), events, ends)),
            store,
            tasks,
        })
    }

    fn check_open(&self) -> Result<()> {
        match self.store.state().closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }
}

/// Tries again what no server took; the caller sets the limit. During an election servers take no connections.
async fn retry<'a, T>(
    mut attempt: impl FnMut() -> BoxFuture<'a, Result<T, Refusal>>,
) -> Result<T, Refusal> {
    loop {
        match attempt().await {
            Err(Refusal::AuthFailed) => return Err(Refusal::AuthFailed),
            Err(error) => {
                tracing::debug!(%error, "no connection to ZooKeeper; trying again");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            opened => return opened,
        }
    }
}

/// What the servers report: events of single claims, and the ends of sessions.
fn reports(
    store: Arc<Store>,
    mut events: mpsc::UnboundedReceiver<Event>,
    mut ended: mpsc::UnboundedReceiver<Arc<Life>>,
) -> EventStream {
    EventStream::new(futures_util::stream::poll_fn(move |cx| {
        while let Poll::Ready(Some(life)) = ended.poll_recv(cx) {
            // Its claims' events come through the other channel.
            store.tell_of(&life);
        }
        events.poll_recv(cx).map(|event| event.map(Ok))
    }))
}

/// Makes the chroot if it is missing, and finds out whether this user may lock there.
async fn prepare(config: &Arc<Config>, line: &Session) -> Result<()> {
    let trouble = |trouble| store::error(config, "trying its rights", trouble);
    let link = line.link().await.map_err(trouble)?;
    if config.inspect_only {
        // Where there is no such node, there are no locks.
        let list = link.client().list_children(root(config));
        return match link.read(list).await {
            Ok(_) | Err(Trouble::Answered(Refusal::NoNode)) => Ok(()),
            Err(refused) => Err(trouble(refused)),
        };
    }
    store::make_root(config, &link).await.map_err(trouble)?;
    let probe = format!("{}/fencelock-probe-{:x}", config.root, link.life.id);
    let options = CreateMode::Ephemeral.with_acls(config.acls());
    let mut writer = link.client().new_multi_writer();
    // In one transaction, so that nobody sees it.
    let added = writer
        .add_create(&probe, b"", &options)
        .and_then(|()| writer.add_delete(&probe, None));
    added.map_err(|refusal| trouble(Trouble::Answered(refusal)))?;
    let commit = writer.commit();
    let list = link.client().list_children(root(config));
    let written = link.write(Clock::Boot.now(), commit.map_err(Refusal::from));
    let (written, listed) = tokio::join!(written, link.read(list));
    written.map_err(trouble)?;
    listed.map(drop).map_err(trouble)
}

fn root(config: &Config) -> &str {
    match config.root.as_str() {
        "" => "/",
        root => root,
    }
}

fn promises((shortest, longest): (Duration, Duration), window: Duration) -> Promises {
    let sure = longest * 2 / 3;
    let mut limits = Vec::new();
    if sure < USUAL {
        limits.push(Finding {
            purpose: Purpose::Correctness,
            what: format!(
                "a hold is lost {sure:?} after its last renewal however long its ttl, because the servers grant no session above {longest:?}"
            ),
            change: format!("raise maxSessionTimeout above {:?}, or use shorter ttls", USUAL * 3 / 2),
        });
    }
    Promises {
        engine: "zookeeper",
        order: Order::Fifo,
        shared: true,
        permits: true,
        lock_delay: true,
        ranges: true,
        portable: false,
        lease: LeaseKind::Session,
        wake: Wake::Push,
        durability: Durability::Durable,
        clock: "the servers' monotonic clocks and this machine's run at about the same rate, to within a third of the session timeout; jumps of the wall clock do not matter",
        // In whole milliseconds, which is what people write.
        min_ttl: Duration::from_millis((shortest.as_millis() as u64 * 2).div_ceil(3)),
        max_ttl: LONGEST,
        claim_window: window,
        limits,
    }
}

#[async_trait]
impl Engine for ZooKeeper {
    fn promises(&self) -> &Promises {
        &self.promises
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.check_open()?;
        self.store.place(claim).await
    }

    async fn wait(&self, claim: &Claim, _place: &Place) -> Result<Option<Grant>> {
        self.check_open()?;
        self.store.wait(claim).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.store.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.check_open()?;
        self.store.withdraw(claim, how).await
    }

    fn events(&self) -> Result<EventStream> {
        self.events.take(self)
    }

    fn inspect(&self) -> &dyn Inspect {
        self
    }

    async fn close(&self) -> Result<()> {
        let delayed = {
            let mut state = self.store.state();
            if std::mem::replace(&mut state.closed, true) {
                return Ok(());
            }
            // What is still there is to stay for its lock-delay, so for its session's timeout.
            !state.spots.is_empty()
        };
        for task in &self.tasks {
            task.abort();
        }
        if self.store.line.has_link() {
            self.store.drop_parents(Duration::ZERO).await;
        }
        let sessions = self.store.sessions().await;
        let closing = sessions.iter().map(|session| session.close(!delayed));
        futures_util::future::join_all(closing).await;
        Ok(())
    }
}

#[async_trait]
impl Inspect for ZooKeeper {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        self.check_open()?;
        self.store.look(name, None).await
    }

    async fn watch(&self, name: &LockName, seen: Option<Token>) -> Result<LockView> {
        self.check_open()?;
        self.store.look(name, Some(seen)).await
    }

    async fn attest(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        self.check_open()?;
        self.store.attest(name, owner).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.check_open()?;
        self.store.list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.check_open()?;
        self.store.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.check_open()?;
        Ok(crate::diagnose::diagnose(&self.store.config).await)
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper({})", self.store.config.store)
    }
}

impl fmt::Display for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.config.store)
    }
}
