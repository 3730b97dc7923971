//! A change of the map: its stores, and the settings of its steps.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Engine, Error, Result, Token};
use futures_util::future::join_all;

use crate::maps::Maps;
use crate::migration::records::Records;
use crate::phase::Phase;
use crate::shard::Shard;

/// Prepares a migration and makes its steps. Made by [`Migrate::migration`](crate::Migrate::migration).
#[derive(Debug)]
pub struct Migration {
    pub(crate) set: String,
    pub(crate) maps: Maps,
    /// The shards of both maps.
    pub(crate) stores: Vec<Shard>,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stepped {
    /// The set is now in this phase.
    Done(Phase),
    /// The set cannot go on yet, for this reason.
    NotYet(String),
    /// The set is no more. Programs use this store by itself.
    Dissolved(String),
}

/// How the steps of a [`Migration`] are made.
///
/// ```
/// # use std::time::Duration;
/// use fencelock_composite::{How, Phase};
///
/// let how = How::new("me")
///     .patience(Duration::from_secs(60))
///     .quiet(Duration::from_secs(600))
///     .to(Phase::BothNew)
///     .tell(&|said| println!("{said}"));
/// assert!(!how.despite_findings && !how.record_lost);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct How<'a> {
    /// Who makes the step. The record keeps this text for people.
    pub by: &'a str,
    /// How long a step waits for holds in one store alone to end.
    pub patience: Duration,
    /// For how long there must have been no such holds.
    pub quiet: Duration,
    /// Whether [`Migration::begin`] goes on although a store has a finding.
    pub despite_findings: bool,
    /// Whether a store without a record is taken for a store of the set that has lost it, and gets the record again. Otherwise
    /// the store is refused, because it may be a different one.
    pub record_lost: bool,
    /// The phase at which [`Migration::finish`] ends. If it is not set, each call ends at the next phase that can last.
    pub to: Option<Phase>,
    /// For [`Migration::finish_without_old`] while the old store counts: no token of the old store is above this one.
    pub highest_token: Option<Token>,
    /// Called with what happens, as sentences for people.
    pub tell: &'a (dyn Fn(&str) + Send + Sync),
}

impl<'a> How<'a> {
    /// Settings with half a minute of patience, and without messages.
    #[must_use]
    pub fn new(by: &'a str) -> Self {
        Self {
            by,
            patience: Duration::from_secs(30),
            quiet: Duration::ZERO,
            despite_findings: false,
            record_lost: false,
            to: None,
            highest_token: None,
            tell: &|_| {},
        }
    }

    /// Sets [`patience`](Self#structfield.patience).
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets [`quiet`](Self#structfield.quiet).
    #[must_use]
    pub fn quiet(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets [`despite_findings`](Self#structfield.despite_findings).
    #[must_use]
    pub fn despite_findings(mut self, despite: bool) -> Self {
        self.despite_findings = despite;
        self
    }

    /// Sets [`record_lost`](Self#structfield.record_lost).
    #[must_use]
    pub fn record_lost(mut self, lost: bool) -> Self {
        self.record_lost = lost;
        self
    }

    /// Sets [`to`](Self#structfield.to).
    #[must_use]
    pub fn to(mut self, phase: Phase) -> Self {
        self.to = Some(phase);
        self
    }

    /// Sets [`highest_token`](Self#structfield.highest_token).
    #[must_use]
    pub fn highest_token(mut self, token: Token) -> Self {
        self.highest_token = Some(token);
        self
    }

    /// Sets [`tell`](Self#structfield.tell).
    #[must_use]
    pub fn tell(mut self, tell: &'a (dyn Fn(&str) + Send + Sync)) -> Self {
        self.tell = tell;
        self
    }
}

impl std::fmt::Debug for How<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "How({}, {:?}, {:?})", self.by, self.patience, self.quiet)
    }
}

/// The open stores of a set, during a call.
pub(crate) struct Opened {
    pub(crate) ids: Vec<String>,
    pub(crate) engines: Vec<Arc<dyn Engine>>,
}

impl Opened {
    pub(crate) fn at(&self, id: &str) -> Result<&Arc<dyn Engine>> {
        let place = self.ids.iter().position(|known| known == id);
        let engine = place.and_then(|place| self.engines.get(place));
        engine.ok_or_else(|| Error::internal(id, "no store has this id"))
    }

    pub(crate) async fn close(&self) {
        join_all(self.engines.iter().map(|engine| close(&**engine))).await;
    }
}

/// Closes a store after a step. The step is made or not, whatever the end of its connections.
pub(crate) async fn close(store: &dyn Engine) {
    if let Err(error) = store.close().await {
        tracing::debug!(%error, "closing a store");
    }
}

impl Migration {
    pub(crate) fn shard(&self, id: &str) -> Result<&Shard> {
        let shard = self.stores.iter().find(|shard| shard.id == id);
        shard.ok_or(Error::Closed)
    }

    pub(crate) fn new(set: String, maps: Maps, stores: Vec<Shard>) -> Self {
        Self { set, maps, stores }
    }

    /// Opens all stores.
    pub(crate) async fn open(&self) -> Result<Opened> {
        let opened = join_all(self.stores.iter().map(|shard| shard.store.open())).await;
        let (mut engines, mut failed) = (Vec::new(), None);
        for engine in opened {
            match engine {
                Ok(engine) => engines.push(engine),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let ids = self.stores.iter().map(|shard| shard.id.clone()).collect();
        let opened = Opened { ids, engines };
        match failed {
            None => Ok(opened),
            Some(error) => {
                opened.close().await;
                Err(error)
            }
        }
    }

    pub(crate) fn records<'a>(&'a self, opened: &'a Opened, adopts: bool) -> Records<'a> {
        let first = self.maps.old.shards().next().map(|(id, _)| id);
        let arbiter = opened.ids.iter().position(|id| Some(id.as_str()) == first);
        Records {
            set: &self.set,
            maps: &self.maps,
            ids: &opened.ids,
            engines: &opened.engines,
            adopts,
            // This cannot fail: the old map has a shard, which is one of the stores.
            arbiter: arbiter.unwrap_or(0),
        }
    }
}
