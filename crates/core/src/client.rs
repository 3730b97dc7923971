//! The client of one store. (Long by its examples.)

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::acquire::Acquire;
use crate::engine::{
    Engine, Evict, Finding, LeaseKind, LockView, Promises, Purpose, StoreListener,
};
use crate::guard::Held;
use crate::runtime::background::Background;
use crate::runtime::observer::{NameClass, Observed, Observer};
use crate::runtime::owners::who_am_i;
use crate::runtime::renewer;
use crate::runtime::state::{Settings, State};
use crate::runtime::withdraw::{self, CLOSING};
use crate::types::{ClaimId, Error, LockName, Owner, Result, Sequencer, Token};

/// How often a lock is handed on within this process before the store's queue has its turn.
pub const DEFAULT_BATCH: u32 = 16;

/// A client on one store. Cheap to clone; all clones share holds, renewals and the queue of this process.
///
/// A client belongs to the tokio runtime in which it was made. If that runtime is shut down, renewals stop, and every hold ends
/// with its lease. When the last clone and the last guard are dropped, the client's tasks end.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let client = Client::new(Arc::new(Memory::new()))?; // a program calls fencelock::connect(URL)
/// let guard = client.lock("report").await?;
/// guard.release().await?;
/// client.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) state: Arc<State>,
}

/// The settings with which a client is made.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let client = Client::builder(Arc::new(Memory::new()))
///     .purpose(Purpose::Correctness)
///     .batch(1)
///     .build()?;
/// assert_eq!(client.warnings(), client.promises().limits);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "call build"]
pub struct ClientBuilder {
    engine: Arc<dyn Engine>,
    purpose: Purpose,
    observer: Option<Arc<dyn Observer>>,
    name_class: Option<NameClass>,
    batch: u32,
    inspect_only: bool,
}

impl ClientBuilder {
    /// What the locks are for. With [`Purpose::Correctness`] the client warns about promises that its store cannot keep.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let client = Client::builder(Arc::new(Memory::new())).purpose(Purpose::Correctness).build()?;
    /// for warning in client.warnings() {
    ///     eprintln!("{}; {}", warning.what, warning.change);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn purpose(mut self, purpose: Purpose) -> Self {
        self.purpose = purpose;
        self
    }

    /// Sets an observer of grants, losses and renewals.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # #[derive(Debug)]
    /// # struct Alarm;
    /// # impl Observer for Alarm {}
    /// let builder = Client::builder(Arc::new(Memory::new()));
    /// let client = builder.observer(Arc::new(Alarm)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets a function that gives the class of a lock name. The class is a field of spans and a label of metrics
    ///. Lock names themselves never appear there: they may be many, and they may be secret. No class by
    /// default.
    ///
    /// The function is called for every request and must return at once, with one of a few words. A panic in it counts as no
    /// class.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), fencelock_core::Error> {
    /// # use std::sync::Arc;
    /// # use fencelock_core::{Client, Memory};
    /// let client = Client::builder(Arc::new(Memory::new()))
    ///     .name_class(|name| match name.as_str().split_once(':') {
    ///         Some(("order", _)) => "order", // "order:4711"
    ///         Some(("stock", _)) => "stock",
    ///         _ => "other",
    ///     })
    ///     .build()?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    pub fn name_class<F, C>(mut self, class: F) -> Self
    where
        F: Fn(&LockName) -> C + Send + Sync + 'static,
        C: Into<Cow<'static, str>>,
    {
        self.name_class = Some(NameClass(Arc::new(move |name| class(name).into())));
        self
    }

    /// How many tasks of this process may have a lock one after the other before other processes have their turn. With 1 there
    /// is no hand-off inside the process. 16 by default.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let client = Client::builder(Arc::new(Memory::new())).batch(1).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch.max(1);
        self
    }

    /// Makes a client for inspection only: it can look, list, watch, check and diagnose. Requests and [`Client::evict`] are
    /// refused with [`Error::Unsupported`], before anything is sent.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let client = Client::builder(Arc::new(Memory::new())).inspect_only(true).build()?;
    /// assert!(client.list("").await?.is_empty());
    /// assert!(matches!(client.lock("report").await, Err(Error::Unsupported { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn inspect_only(mut self, inspect_only: bool) -> Self {
        self.inspect_only = inspect_only;
        self
    }

    /// Makes the client.
    ///
    /// # Errors
    /// [`Error::Internal`] outside a tokio runtime, or without random numbers.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let client = Client::builder(Arc::new(Memory::new())).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn build(self) -> Result<Client> {
        let engine = observed_engine(self.engine);
        let runtime = Handle::try_current().map_err(|error| {
            let why = format!("a client must be made within a tokio runtime: {error}");
            Error::internal(&engine, why)
        })?;
        let settings = Settings {
            who: who_am_i(),
            batch: self.batch,
            inspect_only: self.inspect_only,
            purpose: self.purpose,
        };
        let events = engine.events()?;
        let background = Background::new(runtime);
        let name = engine.promises().engine;
        let observed = Observed::new(name, self.observer, self.name_class);
        let state = State::new(engine, settings, observed, Arc::clone(&background))?;
        let state = Arc::new(state);
        let client = Client { state };
        for limit in client.warnings() {
            let store = client.store();
            tracing::warn!(store, what = %limit.what, change = %limit.change, "not fit for correctness");
        }
        let state = &client.state;
        let observing = Arc::downgrade(state);
        state
            .engine
            .listen_to_stores(StoreListener::new(move |store, change| {
                if let Some(state) = observing.upgrade() {
                    state.observed.store_changed(store, change);
                }
            }));
        background.run_with_client(renewer::run(Arc::downgrade(state), state.clock));
        background.run_with_client(renewer::listen(Arc::downgrade(state), events));
        Ok(client)
    }
}

#[cfg(feature = "metrics")]
fn observed_engine(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    Arc::new(crate::layers::StoreCalls::new(engine))
}

#[cfg(not(feature = "metrics"))]
fn observed_engine(engine: Arc<dyn Engine>) -> Arc<dyn Engine> {
    engine
}

impl Client {
    /// A client on an engine, with default settings. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Those of [`ClientBuilder::build`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let client = Client::new(Arc::new(Memory::new()))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(engine: Arc<dyn Engine>) -> Result<Self> {
        Self::builder(engine).build()
    }

    /// A client on an engine, with settings.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let builder = Client::builder(Arc::new(Memory::new()));
    /// let client = builder.purpose(Purpose::Correctness).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(engine: Arc<dyn Engine>) -> ClientBuilder {
        ClientBuilder {
            engine,
            purpose: Purpose::default(),
            observer: None,
            name_class: None,
            batch: DEFAULT_BATCH,
            inspect_only: false,
        }
    }

    /// A request for a lock. It waits without limit until the lock is granted, even while the store does not answer. See
    /// [`Acquire::timeout`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").ttl(Duration::from_secs(10)).await?;
    /// // … what nobody else does meanwhile …
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock(&self, name: &str) -> Acquire {
        Acquire::new(&self.state, name, true)
    }

    /// A request for a lock that does not wait: [`Error::Held`] if another holds the lock.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.try_lock("report").await?;
    /// let second = client.try_lock("report").await;
    /// assert!(matches!(second, Err(Error::Held { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_lock(&self, name: &str) -> Acquire {
        Acquire::new(&self.state, name, false)
    }

    /// Runs `body` under the lock `name`; see [`Acquire::with`].
    ///
    /// # Errors
    /// Those of a request, and [`Error::Lost`] if the lock was lost before the body ended.
    ///
    /// # Cancel safety
    /// May be dropped: the body is dropped, and the lock is released in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let done = client.with("report", |held| async move {
    ///     format!("written with token {}", held.token())
    /// });
    /// assert!(done.await?.starts_with("written"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with<F, B, T>(&self, name: &str, body: F) -> Result<T>
    where
        F: FnOnce(Held) -> B,
        B: Future<Output = T>,
    {
        self.lock(name).with(body).await
    }

    /// A new owner. It may enter again a lock that it holds, and a child process may join it.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let owner = client.owner();
    /// let outer = client.lock("report").owner(&owner).await?;
    /// let inner = client.lock("report").owner(&owner).await?; // does not wait for itself
    /// assert_eq!(inner.token(), outer.token());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::fresh(&self.state.settings.who, self.state.ids.next())
    }

    /// A new owner within the owner of an outer process, from that owner's text (`FENCELOCK_OWNER`). If the outer owner, or an
    /// owner around it, holds a lock, this process joins that hold, and never renews or releases it. Every other lock belongs
    /// to the new owner alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the text is not that of an owner, or owners are nested more than about twenty levels deep.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let memory = Memory::new();
    /// # let client = Client::new(Arc::new(memory.another()))?;
    /// # let other = Client::new(Arc::new(memory))?;
    /// let outer = client.owner();
    /// let guard = client.lock("report").owner(&outer).await?;
    /// let text = outer.as_str(); // the child process gets it as FENCELOCK_OWNER
    ///
    /// let owner = other.join(text)?;
    /// let joined = other.lock("report").owner(&owner).await?;
    /// assert!(joined.joined());
    /// # Ok(())
    /// # }
    /// ```
    pub fn join(&self, text: &str) -> Result<Owner> {
        Owner::within(text, self.state.ids.next())
    }

    /// The store on which a lock lies, as a label for metrics: in a set of stores the id of the shard, otherwise the kind of
    /// store. While a set moves, it is the store that counts, as far as this process knows.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// assert_eq!(client.store_of("report")?, "memory");
    /// # Ok(())
    /// # }
    /// ```
    pub fn store_of(&self, name: &str) -> Result<String> {
        Ok(self.state.engine.store_of(&LockName::new(name)?))
    }

    /// The only place where a claim of this client can be renewed and released, if there is one: see [`Engine::home_of`].
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// assert_eq!(client.home_of(&guard.sequencer().await?.claim), None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn home_of(&self, claim: &ClaimId) -> Option<String> {
        self.state.engine.home_of(claim)
    }

    /// The lock as it is now.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").label("by hand").await?;
    /// let view = client.look("report").await?;
    /// assert_eq!(view.token(), Some(guard.token()));
    /// assert_eq!(view.holders[0].label.as_deref(), Some("by hand"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look(&self, name: &str) -> Result<LockView> {
        self.state
            .engine
            .inspect()
            .look(&LockName::new(name)?)
            .await
    }

    /// Waits until the highest token of the lock differs from `seen` (`None`: the lock was free), and returns the lock at that
    /// time.
    ///
    /// # Errors
    /// Those of [`Client::look`].
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let seen = client.look("report").await?.token();
    /// let guard = client.lock("report").await?;
    /// let view = client.watch("report", seen).await?;
    /// assert_eq!(view.token(), Some(guard.token()));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn watch(&self, name: &str, seen: Option<Token>) -> Result<LockView> {
        let name = LockName::new(name)?;
        self.state.engine.inspect().watch(&name, seen).await
    }

    /// All locks that are held now and whose names begin with `prefix`, by name.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("order/4711").await?;
    /// let held = client.list("order/").await?;
    /// assert_eq!(held[0].name.as_str(), "order/4711");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockView>> {
        let (mut found, mut at) = (Vec::new(), None);
        loop {
            let page = self.state.engine.inspect().list(prefix, at, 1000).await?;
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

    /// Takes a lock from the holder with this token, or asks that holder to release it. Returns `false` if no holder has this
    /// token. If tasks of one process hand a lock on, their tokens are one grant in the store. Then the call affects the task
    /// that holds the lock now.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`] if the store does not answer, [`Error::Unsupported`] if the
    /// client was opened for inspection only.
    ///
    /// # Cancel safety
    /// May be dropped: the request continues in the background.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// assert!(client.evict("report", guard.token(), Evict::Release).await?);
    /// assert_eq!(guard.lost().await, LossReason::TakenAway);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn evict(&self, name: &str, token: Token, how: Evict) -> Result<bool> {
        let name = LockName::new(name)?;
        self.state.check_takes("the release of another's lock")?;
        let engine = Arc::clone(&self.state.engine);
        let evict = async move { engine.inspect().evict(&name, token, how).await };
        self.state.background.carry(evict).await
    }

    /// Whether exactly this grant is held now (Chubby's `CheckSequencer`). A lock that the store only keeps for its lock-delay
    /// is no longer held. But where a hold lives as long as a session ([`LeaseKind::Session`]), such a lock counts as held: the
    /// store shows no difference. A lock that stays held after its release ([`Acquire::at_least`]) counts as held, too.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// let sequencer = guard.sequencer().await?;
    /// assert!(client.check(&sequencer).await?);
    /// guard.release().await?;
    /// assert!(!client.check(&sequencer).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self, sequencer: &Sequencer) -> Result<bool> {
        let view = self.state.engine.inspect().look(&sequencer.name).await?;
        // The remaining time of a session is not that of a lease, and it is rounded.
        let leases = self.promises().lease == LeaseKind::Lease;
        Ok(view.holders.iter().any(|holder| {
            holder.claim == Some(sequencer.claim)
                && holder.token == Some(sequencer.token)
                && holder.mode.letter() == sequencer.mode.letter()
                && (!leases || holder.ttl_left.is_none_or(|left| left > holder.lock_delay))
        }))
    }

    /// What the store promises, as it was found when it was opened.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// assert_eq!(client.promises().order, Order::Fifo);
    /// assert!(client.promises().shared);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn promises(&self) -> &Promises {
        self.state.promises()
    }

    /// How the store falls short of the purpose that the client was opened for.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// // It was opened for efficiency, of which every store is capable.
    /// assert!(client.warnings().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[Finding] {
        match self.state.settings.purpose {
            Purpose::Efficiency => &[],
            Purpose::Correctness => &self.promises().limits,
        }
    }

    /// What is wrong with the store now: the limits of its promises, and the findings of a check.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the store does not answer.
    ///
    /// # Cancel safety
    /// May be dropped.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// for finding in client.diagnose().await? {
    ///     println!("{}: {}; {}", finding.purpose.as_str(), finding.what, finding.change);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let limits = self.promises().limits.iter().cloned();
        let found = self.state.engine.inspect().diagnose().await?;
        Ok(limits.chain(found).collect())
    }

    /// The store, without its password.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// assert_eq!(client.store(), "memory:");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn store(&self) -> String {
        self.state.engine.to_string()
    }

    /// Ends the client and all its clones: requests end with [`Error::Closed`], guards report a loss, and all holds are
    /// released. Waits for background work for 4 s at most.
    ///
    /// # Errors
    /// The errors of closing the engine's connections.
    ///
    /// # Cancel safety
    /// May be dropped and called again; the client is closed from the first call on.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// # let guard = client.lock("report").await?;
    /// client.close().await?;
    /// assert_eq!(guard.lost().await, LossReason::ClientClosed);
    /// assert!(matches!(client.lock("report").await, Err(Error::Closed)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) -> Result<()> {
        let state = &self.state;
        state.closing.close();
        for hold in state.schedule.all() {
            state
                .background
                .run(withdraw::close(Arc::clone(state), hold));
        }
        // The wait is limited, since the store may not answer, or a request may no longer be polled.
        tokio::select! {
            () = state.background.all_ended() => {}
            () = state.clock.sleep_until(state.clock.now() + 2 * CLOSING) => {}
        }
        state.engine.close().await
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client({})", self.state.engine)
    }
}
