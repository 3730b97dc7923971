//! One store of an open set: opened when it is first needed, checked against its record, and named in its errors.

use std::fmt;
use std::sync::{Arc, OnceLock};

use fencelock_core::engine::{StoreChange, StoreListener};
use fencelock_core::layers::Breaker;
use fencelock_core::{BootInstant, Clock, ConfigPart, Engine, Error, Result, StoreUrl};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use crate::map::Map;
use crate::opened_events::Joining;
use crate::promises::Promised;
use crate::shard::OpenStore;
use crate::stored::Stored;

/// What a store's record must say.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Exactly this map, which does not change.
    Fixed(Map),
    /// Maps with these ids, which may change.
    Moving(Vec<String>),
}

/// What all stores of a set have in common.
#[derive(Debug)]
pub(crate) struct Common {
    /// The scheme of its URL.
    pub(crate) scheme: &'static str,
    pub(crate) set: String,
    pub(crate) rule: Rule,
    /// What the set promises; known once one of its records was read.
    pub(crate) promised: OnceLock<Promised>,
    /// Takes the events of each store that is opened. It takes none after the set was closed.
    pub(crate) joining: Joining,
    /// Whether each store has a breaker.
    pub(crate) breaker: bool,
    /// Gets what changes at the stores.
    pub(crate) listener: OnceLock<StoreListener>,
}

impl Common {
    /// Reports a change of this store, or of the set itself.
    pub(crate) fn tell(&self, store: &str, change: StoreChange) {
        if let Some(listener) = self.listener.get() {
            listener.tell(store, change);
        }
    }

    pub(crate) fn listen(&self, listener: StoreListener) {
        // The first one stays.
        let _ = self.listener.set(listener);
    }
}

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    store: Arc<dyn OpenStore>,
    common: Arc<Common>,
    engine: OnceLock<Arc<dyn Engine>>,
    /// The lock for one attempt at a time; it holds when and how the last one failed.
    attempt: Mutex<Option<(BootInstant, Away)>>,
}

/// A failed attempt: the store did not answer.
#[derive(Debug)]
struct Away {
    action: String,
    why: String,
}

impl Member {
    pub(crate) fn new(id: String, store: Arc<dyn OpenStore>, common: Arc<Common>) -> Self {
        Self {
            id,
            store,
            common,
            engine: OnceLock::new(),
            attempt: Mutex::default(),
        }
    }

    /// The engine of the store, if it is open.
    pub(crate) fn opened(&self) -> Option<&Arc<dyn Engine>> {
        self.engine.get()
    }

    /// The store, which is opened now if it is not open yet.
    pub(crate) async fn engine(&self) -> Result<&Arc<dyn Engine>> {
        match self.engine.get() {
            Some(engine) => Ok(engine),
            // Boxed, so that the future of the common case stays small.
            None => Box::pin(self.open_in_turn()).await,
        }
    }

    /// Opens the store. Those who wait for an attempt that fails share its error, so that many claims do not wait one after the
    /// other.
    async fn open_in_turn(&self) -> Result<&Arc<dyn Engine>> {
        let asked = Clock::Boot.now();
        let mut last = self.attempt.lock().await;
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        if let Some((failed, away)) = &*last
            && *failed > asked
        {
            return Err(Error::unavailable(self, &away.action, away.why.as_str()));
        }
        match self.open().await {
            Ok(engine) => Ok(self.engine.get_or_init(|| engine)),
            Err(error) => {
                if let Error::Unavailable { action, cause, .. } = &error {
                    let (action, why) = (action.clone(), cause.to_string());
                    *last = Some((Clock::Boot.now(), Away { action, why }));
                }
                Err(error)
            }
        }
    }

    async fn open(&self) -> Result<Arc<dyn Engine>> {
        if self.common.joining.is_closed() {
            return Err(Error::Closed);
        }
        let engine = self.store.open().await.map_err(|error| self.named(error))?;
        let joined = match self.check(&*engine).await {
            Ok(()) => {
                let joining = &self.common.joining;
                joining.join(engine.events(), &self.id, &self.to_string())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = joined {
            // The store may belong to another set. Nothing was taken there. One that was only away is asked again, and its engine
            // may be the program's own.
            if !matches!(error, Error::Unavailable { .. }) {
                let _ = engine.close().await;
            }
            return Err(error);
        }
        let engine: Arc<dyn Engine> = match self.common.breaker {
            true => Arc::new(Breaker::new(engine)),
            false => engine,
        };
        let (common, id) = (Arc::clone(&self.common), self.id.clone());
        engine.listen_to_stores(StoreListener::new(move |_, change| {
            common.tell(&id, change)
        }));
        Ok(engine)
    }

    /// Refuses a store that is not this shard.
    async fn check(&self, engine: &dyn Engine) -> Result<()> {
        let Common { set, rule, .. } = &*self.common;
        let record = engine.record("", None).await;
        let record = record.map_err(|error| self.named(error))?;
        if record.text.is_empty() && matches!(rule, Rule::Moving(_)) {
            // A store without a record decides nothing. Another store may have the record.
            return Ok(());
        }
        if record.text.is_empty() {
            let why = format!(
                "it has no record that says which shard of which set it is. If the set {set:?} is new, write the records with \
                 `fencelock shards init`; if it is not, this is not its store, or its data are lost"
            );
            return Err(Error::config(self, ConfigPart::Record, why));
        }
        let stored = self.read(&record.text)?;
        let promised = self.common.promised.get_or_init(|| stored.promises.clone());
        let broken = promised.broken_by(engine.promises());
        if !broken.is_empty() {
            let why = format!(
                "it does not offer {} (any more), which the set {set:?} promises; end all programs of the set and write the \
                 records anew",
                broken.join(", ")
            );
            return Err(Error::config(self, ConfigPart::Record, why));
        }
        if promised.is_more_than(engine.promises()) {
            tracing::warn!(store = %self, "it remembers less, or wakes waiters worse, than the set's record says");
        }
        Ok(())
    }

    /// Parses the text of its record.
    ///
    /// # Errors
    /// [`Error::Config`] if it is not the record of this store of this set.
    pub(crate) fn read(&self, text: &str) -> Result<Stored> {
        let Common { set, rule, .. } = &*self.common;
        let stored = Stored::parse(text).and_then(|stored| {
            match rule {
                Rule::Fixed(map) => stored.check(set, &self.id, map)?,
                Rule::Moving(ids) => stored.check_moving(set, &self.id, ids)?,
            }
            Ok(stored)
        });
        stored.map_err(|why| Error::config(self, ConfigPart::Record, why))
    }

    /// The scheme and the hosts of its URL, in order. `None` if it has no host.
    pub(crate) fn server(&self) -> Option<(String, Vec<String>)> {
        let mut url = StoreUrl::parse(&self.store.to_string()).ok()?;
        url.hosts.sort();
        (!url.hosts.is_empty()).then_some((url.scheme, url.hosts))
    }

    /// Adds the id of this shard to an error of the store.
    pub(crate) fn named(&self, mut error: Error) -> Error {
        if let Error::Config { store, .. }
        | Error::Unsupported { store, .. }
        | Error::Unavailable { store, .. }
        | Error::Refused { store, .. }
        | Error::NotALock { store, .. }
        | Error::Internal { store, .. } = &mut error
        {
            let Common { scheme, set, .. } = &*self.common;
            *store = format!("{scheme}:{set}[{}] {store}", self.id);
        }
        error
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Common { scheme, set, .. } = &*self.common;
        write!(f, "{scheme}:{set}[{}] {}", self.id, self.store)
    }
}

/// What distinguishes a set from others: its name, and the store of each id.
pub(crate) fn identity_of(common: &Common, members: &[Member]) -> String {
    let stores = members
        .iter()
        .map(|member| format!("{}={}", member.id, member.store));
    let stores: Vec<_> = stores.collect();
    format!("{}:{}[{}]", common.scheme, common.set, stores.join(", "))
}

/// Closes the stores that are open.
pub(crate) async fn close_all(members: &[Member]) -> Result<()> {
    let opened = members.iter().filter_map(|member| {
        let engine = member.opened()?;
        Some((member, engine))
    });
    let closed = opened
        .map(async |(member, engine)| engine.close().await.map_err(|error| member.named(error)));
    join_all(closed).await.into_iter().collect()
}
