//! What programs open and ask: a client on one store.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::drive::{CLOSING, Caller};
use crate::engine::{Engine, EventStream, Evict, LockView};
use crate::engine::{Finding, LeaseKind, Promises, Purpose};
use crate::guard::{self, Held};
use crate::hold::Hold;
use crate::keeper::{self, Keeper};
use crate::line::Lines;
use crate::observe::Observer;
use crate::runtime::owners::{Owners, who_am_i};
use crate::types::LockName;
use crate::types::in_words;
use crate::types::{BootInstant, Clock};
use crate::types::{ClaimIds, Sequencer, Token};
use crate::types::{Error, Result};
use crate::types::{LossReason, Owner};
use crate::wish::Wish;

/// The lease of a wish that names none.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How often a lock is handed on within this process before the store's line has its turn.
pub const DEFAULT_BATCH: u32 = 16;

/// A client on one store. Cheap to clone; all clones share holds, renewals and the line of this process.
///
/// Lives in the tokio runtime in which it was made. If that is shut down, nothing is renewed any more and every hold ends
/// with its lease. When the last clone and the last guard are gone, its tasks end.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// How a client is made.
#[derive(Debug)]
#[must_use = "call build"]
pub struct ClientBuilder {
    engine: Arc<dyn Engine>,
    purpose: Purpose,
    observer: Option<Arc<dyn Observer>>,
    batch: u32,
    inspect_only: bool,
}

pub(crate) struct Inner {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) promises: Promises,
    pub(crate) ids: ClaimIds,
    pub(crate) who: Arc<str>,
    pub(crate) batch: u32,
    /// Nothing is taken, and nothing is taken from others.
    inspect_only: bool,
    pub(crate) lines: Lines,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) owners: Owners,
    pub(crate) closing: Notify,
    closed: AtomicBool,
    observer: Option<Arc<dyn Observer>>,
    warnings: Vec<Finding>,
    runtime: Handle,
    /// What goes on behind callers' backs: how much, and word of the last one's end.
    working: AtomicUsize,
    worked: Notify,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl ClientBuilder {
    /// What the locks are for. For [`Purpose::Correctness`] the client warns of what its store cannot promise.
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Who is told of grants, losses and renewals.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// How many tasks of this process may have a lock one after the other before other processes have their turn; 1
    /// turns the hand-off inside the process off. 16 if nothing is said.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// The client only looks: it can look, list, watch, check and diagnose. A wish and [`Client::evict`] are refused with
    /// [`Error::Unsupported`], before anything is sent.
    pub fn inspect_only(mut self, inspect_only: bool) -> Self {
        self.inspect_only = inspect_only;
        self
    }

    /// Makes the client.
    ///
    /// # Errors
    /// [`Error::Internal`] outside a tokio runtime, or without random numbers.
    pub fn build(self) -> Result<Client> {
        let engine = self.engine;
        let runtime = Handle::try_current().map_err(|error| Error::Internal {
            store: engine.to_string(),
            why: format!("a client must be made within a tokio runtime: {error}"),
        })?;
        let promises = engine.promises().clone();
        let warnings = match self.purpose {
            Purpose::Efficiency => Vec::new(),
            Purpose::Correctness => promises.limits.clone(),
        };
        for limit in &warnings {
            tracing::warn!(store = %engine, what = %limit.what, change = %limit.change, "not fit for correctness");
        }
        let clock = engine.clock();
        let events = engine.events()?;
        let keeper = Arc::new(Keeper::new(clock));
        let inner = Arc::new(Inner {
            clock,
            promises,
            ids: ClaimIds::new()?,
            who: who_am_i(),
            batch: self.batch,
            inspect_only: self.inspect_only,
            lines: Lines::default(),
            keeper,
            owners: Owners::default(),
            closing: Notify::new(),
            closed: AtomicBool::new(false),
            observer: self.observer,
            warnings,
            working: AtomicUsize::new(0),
            worked: Notify::new(),
            tasks: Mutex::default(),
            engine,
            runtime,
        });
        let renewals = keeper::run(Arc::downgrade(&inner), clock);
        let events = hear(Arc::downgrade(&inner), events);
        let tasks = [inner.runtime.spawn(renewals), inner.runtime.spawn(events)];
        let tasks = tasks.map(|task| task.abort_handle());
        inner.tasks().extend(tasks);
        Ok(Client { inner })
    }
}

/// Listens to what the store tells of its own accord.
async fn hear(client: Weak<Inner>, mut events: EventStream) {
    while let Some(event) = events.next().await {
        let Some(inner) = client.upgrade() else {
            return;
        };
        match event {
            Ok(event) => inner.keeper.clone().tell(&inner, event),
            // Losses are still found by renewal.
            Err(error) => tracing::debug!(%error, "listening to the store failed"),
        }
    }
}

impl Client {
    /// A client on an engine, with default settings. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`ClientBuilder::build`].
    pub fn new(engine: Arc<dyn Engine>) -> Result<Self> {
        Self::builder(engine).build()
    }

    /// A client on an engine, with settings.
    pub fn builder(engine: Arc<dyn Engine>) -> ClientBuilder {
        ClientBuilder {
            engine,
            purpose: Purpose::default(),
            observer: None,
            batch: DEFAULT_BATCH,
            inspect_only: false,
        }
    }

    /// A wish for a lock that waits, for ever if need be, also while the store does not answer.
    pub fn lock(&self, name: &str) -> Wish {
        Wish::new(self, name, true, None)
    }

    /// A wish for a lock that does not wait: [`Error::Held`] if somebody has it.
    pub fn try_lock(&self, name: &str) -> Wish {
        Wish::new(self, name, false, None)
    }

    /// A wish for a lock that waits for as long as `patience`: then [`Error::TimedOut`] if it is held still, or
    /// [`Error::Unavailable`] if the store did not answer last.
    pub fn lock_for(&self, name: &str, patience: Duration) -> Wish {
        Wish::new(self, name, true, Some(patience))
    }

    /// Runs `body` under the lock `name`; see [`Wish::with`].
    ///
    /// # Errors
    /// As a wish, and [`Error::Lost`] if the lock was lost before the body ended.
    ///
    /// # Cancel safety
    /// May be dropped: the body is dropped, and the lock is released behind.
    pub async fn with<F, B, T>(&self, name: &str, body: F) -> Result<T>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = T>,
    {
        self.lock(name).with(body).await
    }

    /// A new owner: what it holds it may enter again, and a child process may join it.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::fresh(&self.inner.who, self.inner.ids.next())
    }

    /// A new owner within that of an outer process, from its text (`FENCELOCK_OWNER`). What that owner holds, or one around
    /// it, is joined, not taken: it is never renewed or released from here. What else is locked is the new owner's alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text is no owner's, or locks stand within locks some twenty deep.
    pub fn join(&self, text: &str) -> Result<Owner> {
        Owner::within(text, self.inner.ids.next())
    }

    /// The lock as it is now.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn look(&self, name: &str) -> Result<LockView> {
        self.inner
            .engine
            .inspect()
            .look(&LockName::new(name)?)
            .await
    }

    /// The lock once its highest token is another than `seen` (`None`: it was free).
    ///
    /// # Errors
    /// As [`Client::look`].
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn watch(&self, name: &str, seen: Option<Token>) -> Result<LockView> {
        let name = LockName::new(name)?;
        self.inner.engine.inspect().watch(&name, seen).await
    }

    /// All locks that are held now and whose names begin with `prefix`, by name.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        let (mut found, mut at) = (Vec::new(), None);
        loop {
            let page = self.inner.engine.inspect().list(prefix, at, 1000).await?;
            found.extend(page.items);
            at = page.next;
            if at.is_none() {
                break;
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found.dedup_by(|a, b| a.name == b.name);
        Ok(found)
    }

    /// Takes a lock from its holder, or asks for it; only the holder with this very token is meant. `false` if it does
    /// not hold. Where tasks of one process hand a lock on, the store has their tokens as those of one grant: then whoever of
    /// them has the lock by now is meant.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`] if the store does not answer, [`Error::Unsupported`] if
    /// the client was opened to look only.
    ///
    /// # Cancel safety
    /// May be dropped: the request goes on behind.
    pub async fn evict(&self, name: &str, token: Token, how: Evict) -> Result<bool> {
        let name = LockName::new(name)?;
        let inner = Arc::clone(&self.inner);
        inner.check_takes("the release of another's lock")?;
        let evict = async move { inner.engine.inspect().evict(&name, token, how).await };
        self.inner.carry(evict).await
    }

    /// Whether that very grant is held now (Chubby's `CheckSequencer`). A lock that the store only keeps for its lock-delay
    /// is held no more; but where a hold lives as long as a session ([`LeaseKind::Session`]), the store does not tell that.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn check(&self, sequencer: &Sequencer) -> Result<bool> {
        let inner = &self.inner;
        let view = inner.engine.inspect().look(&sequencer.name).await?;
        // What is left of a session is not what is left of a lease, and rounded.
        let leases = inner.promises.lease == LeaseKind::Lease;
        Ok(view.holders.iter().any(|holder| {
            holder.claim == Some(sequencer.claim)
                && holder.token == Some(sequencer.token)
                && holder.mode.letter() == sequencer.mode.letter()
                && (!leases || holder.ttl_left.is_none_or(|left| left > holder.lock_delay))
        }))
    }

    /// What the store promises, as it was found at open.
    #[must_use]
    pub fn promises(&self) -> &Promises {
        &self.inner.promises
    }

    /// What stands between the store and the purpose that the client was opened for.
    #[must_use]
    pub fn warnings(&self) -> &[Finding] {
        &self.inner.warnings
    }

    /// What stands between the store, as it is now, and what locks are for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let limits = self.inner.promises.limits.iter().cloned();
        let found = self.inner.engine.inspect().diagnose().await?;
        Ok(limits.chain(found).collect())
    }

    /// The store, without its password.
    #[must_use]
    pub fn store(&self) -> String {
        self.inner.engine.to_string()
    }

    /// Ends the client, all clones of it: wishes end with [`Error::Closed`], what is held is lost to its guards and
    /// released, and what goes on behind is waited for, for 4 s at most.
    ///
    /// # Errors
    /// What the engine says of closing its connections.
    ///
    /// # Cancel safety
    /// May be dropped and called again; the client is closed from the first call on.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.inner;
        inner.closed.store(true, Ordering::SeqCst);
        inner.closing.notify_waiters();
        for hold in inner.keeper.all() {
            inner.behind(|inner| guard::close(inner, hold));
        }
        // A store that does not answer, or a wish that nobody polls any more, is not waited for without end.
        tokio::select! {
            () = inner.all_worked() => {}
            () = inner.clock.sleep_until(inner.clock.now() + 2 * CLOSING) => {}
        }
        inner.engine.close().await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.inner.engine)
    }
}

impl Inner {
    fn tasks(&self) -> std::sync::MutexGuard<'_, Vec<AbortHandle>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn internal(&self, why: impl Into<String>) -> Error {
        let (store, why) = (self.engine.to_string(), why.into());
        Error::Internal { store, why }
    }

    /// Returns when nothing goes on behind callers' backs.
    async fn all_worked(&self) {
        loop {
            let worked = self.worked.notified();
            tokio::pin!(worked);
            worked.as_mut().enable();
            if self.working.load(Ordering::SeqCst) == 0 {
                return;
            }
            worked.await;
        }
    }

    /// Refuses what changes the store, if the client was opened to look only.
    pub(crate) fn check_takes(&self, what: &'static str) -> Result<()> {
        if !self.inspect_only {
            return Ok(());
        }
        let why = "this client was opened to look only; open another one without inspect_only";
        Err(Error::unsupported(&self.engine, what, why))
    }

    /// Refuses a ttl that the store does not take.
    pub(crate) fn check_ttl(&self, ttl: Duration, lock_delay: Duration) -> Result<()> {
        let shown = || format!("{ttl:?}");
        if ttl.is_zero() {
            return Err(Error::invalid(
                "ttl",
                shown(),
                "it must be longer than nothing",
            ));
        }
        let Promises {
            min_ttl, max_ttl, ..
        } = self.promises;
        if ttl < min_ttl {
            let min_ttl = in_words(min_ttl);
            let why = format!("the shortest that {} takes is {min_ttl}", self.engine);
            return Err(Error::invalid("ttl", shown(), why));
        }
        if ttl.saturating_add(lock_delay) > max_ttl {
            let max_ttl = in_words(max_ttl);
            let why = format!(
                "with its lock-delay it is longer than the {max_ttl} that {} takes",
                self.engine
            );
            return Err(Error::invalid("ttl", shown(), why));
        }
        Ok(())
    }

    /// Counts as work that [`Client::close`] waits for, until it is dropped.
    pub(crate) fn working(self: &Arc<Self>) -> Working {
        self.working.fetch_add(1, Ordering::SeqCst);
        Working(Arc::clone(self))
    }

    /// Does something behind the caller's back; [`Client::close`] waits for it.
    pub(crate) fn behind<F, B>(self: &Arc<Self>, work: F)
    where
        F: FnOnce(Arc<Self>) -> B,
        B: Future<Output = ()> + Send + 'static,
    {
        // Counts down also if the work panics or the runtime is shut down.
        let counted = self.working();
        let work = work(Arc::clone(self));
        self.runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    /// Runs a task that nobody waits for and that may be dropped at any time.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// A future that goes on behind the caller's back if it is dropped.
    pub(crate) fn carry<T, F>(self: &Arc<Self>, future: F) -> Carried<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        Carried {
            future: Some(Box::pin(future)),
            caller: None,
            inner: Arc::clone(self),
        }
    }

    /// Notes a loss, once, and lets the next task of this process try.
    pub(crate) fn lose(self: &Arc<Self>, hold: &Arc<Hold>, reason: LossReason) {
        if hold.lose(reason) {
            let (name, token) = (&hold.claim.name, hold.token());
            tracing::warn!(%name, %token, %reason, "a lock was lost");
            self.observe(|observer| observer.lost(name, token, reason));
        }
        self.lines.leave(self, hold);
    }

    pub(crate) fn observes(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn observe_grant(
        &self,
        name: &LockName,
        token: Token,
        begun: Option<BootInstant>,
        handed_on: bool,
    ) {
        self.observe(|observer| {
            let waited = begun.map_or(Duration::ZERO, |begun| self.clock.now().since(begun));
            observer.granted(name, token, waited, handed_on);
        });
    }

    /// Tells the observer. One that panics must not take the task with it that renews, or tells of losses.
    pub(crate) fn observe(&self, tell: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.observer else {
            return;
        };
        let told = catch_unwind(AssertUnwindSafe(|| tell(&**observer)));
        if told.is_err() {
            tracing::error!("an observer panicked");
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inner({})", self.engine)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for task in self.tasks().drain(..) {
            task.abort();
        }
    }
}

/// Something that is being done.
pub(crate) struct Working(Arc<Inner>);

impl Drop for Working {
    fn drop(&mut self) {
        if self.0.working.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.worked.notify_waiters();
        }
    }
}

/// A future whose calls in flight are never dropped: if the handle is, the rest runs behind the caller's back.
pub(crate) struct Carried<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    /// Is told when the handle is dropped.
    pub(crate) caller: Option<Arc<Caller>>,
    pub(crate) inner: Arc<Inner>,
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(future) = self.future.as_mut() else {
            // Polled after its end, which the contract of futures leaves open.
            return Poll::Pending;
        };
        let result = std::task::ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        let Some(rest) = self.future.take() else {
            return;
        };
        if let Some(caller) = &self.caller {
            caller.leave();
        }
        self.inner.behind(|_| async move {
            rest.await;
        });
    }
}
