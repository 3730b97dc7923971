//! The state that all parts of one client share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::background::{Background, Closing};
use super::hold::Hold;
use super::observer::Observed;
use super::owners::Owners;
use super::queue::Queues;
use super::schedule::Schedule;
use crate::engine::{Engine, Promises, Purpose};
use crate::types::{BootInstant, ClaimIds, Clock, Error, LossReason, Result, Token, in_words};

/// The settings of a client.
pub(crate) struct Settings {
    /// The owner text of requests that name no owner.
    pub(crate) who: Arc<str>,
    /// How many tokens a contended claim asks for.
    pub(crate) batch: u32,
    /// Whether the client is for inspection only: it takes no locks and evicts no holders.
    pub(crate) inspect_only: bool,
    pub(crate) purpose: Purpose,
}

pub(crate) struct State {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Clock,
    pub(crate) ids: ClaimIds,
    pub(crate) settings: Settings,
    pub(crate) queues: Queues,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) owners: Owners,
    pub(crate) closing: Closing,
    pub(crate) background: Arc<Background>,
    pub(crate) observed: Observed,
}

impl State {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        settings: Settings,
        observed: Observed,
        background: Arc<Background>,
    ) -> Result<Self> {
        let clock = engine.clock();
        let ids = engine
            .claim_ids()
            .map_or_else(ClaimIds::new, |drawn| Ok(ClaimIds::with(drawn)))?;
        Ok(Self {
            engine,
            clock,
            ids,
            settings,
            queues: Queues::default(),
            schedule: Arc::new(Schedule::new(clock)),
            owners: Owners::default(),
            closing: Closing::default(),
            background,
            observed,
        })
    }

    pub(crate) fn promises(&self) -> &Promises {
        self.engine.promises()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closing.is_closed()
    }

    pub(crate) fn internal(&self, why: impl Into<String>) -> Error {
        let (store, why) = (self.engine.to_string(), why.into());
        Error::internal(store, why)
    }

    /// Refuses an action that changes the store, if the client was opened for inspection only.
    pub(crate) fn check_takes(&self, what: &'static str) -> Result<()> {
        if !self.settings.inspect_only {
            return Ok(());
        }
        let why =
            "this client was opened for inspection only; open another one without inspect_only";
        Err(Error::unsupported(&self.engine, what, why))
    }

    /// Refuses a ttl that the store does not accept.
    pub(crate) fn check_ttl(&self, ttl: Duration, lock_delay: Duration) -> Result<()> {
        let refuse = |why: String| Err(Error::invalid("ttl", format!("{ttl:?}"), why));
        let min_ttl = self.promises().min_ttl;
        if ttl.is_zero() {
            return refuse("it must be longer than 0".to_owned());
        }
        if ttl < min_ttl {
            let min_ttl = in_words(min_ttl);
            return refuse(format!(
                "the shortest that {} takes is {min_ttl}",
                self.engine
            ));
        }
        self.check_length("ttl", ttl, lock_delay)
    }

    /// Refuses a lease that is longer than the store accepts; `what` names it.
    pub(crate) fn check_length(
        &self,
        what: &'static str,
        lease: Duration,
        lock_delay: Duration,
    ) -> Result<()> {
        let max_ttl = self.promises().max_ttl;
        if lease.saturating_add(lock_delay) <= max_ttl {
            return Ok(());
        }
        let why = format!(
            "with its lock-delay it is longer than the {} that {} takes",
            in_words(max_ttl),
            self.engine
        );
        Err(Error::invalid(what, format!("{lease:?}"), why))
    }

    /// Notes a loss, once, and lets the next task of this process try.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LossReason) {
        if hold.lose(reason) {
            let (name, token) = (&hold.claim.name, hold.token());
            tracing::warn!(%name, %token, %reason, "a lock was lost");
            hold.seen.close(reason.as_str());
            hold.seen.end();
            self.observed.series(name, hold.mode()).lost(reason);
            self.observed
                .tell(|observer| observer.lost(name, token, reason));
        }
        self.queues.leave(hold);
    }

    /// Reports a grant to the observer. The wait counts from `begun`.
    pub(crate) fn report_grant(
        &self,
        hold: &Hold,
        token: Token,
        begun: Option<BootInstant>,
        handed_on: bool,
    ) {
        let (name, mode) = (&hold.claim.name, hold.mode());
        let waited = begun.map(|begun| self.clock.now().since(begun));
        if !handed_on {
            hold.seen.begin(self.observed.series(name, mode));
        }
        hold.seen.open(self.observed.hold_span(name, mode));
        hold.seen.series().granted(waited, handed_on);
        self.observed.tell(|observer| {
            observer.granted(name, token, waited.unwrap_or_default(), handed_on);
        });
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State({})", self.engine)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.background.stop();
    }
}
