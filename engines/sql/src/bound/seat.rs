//! How far a claim has come here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, Clock, Mode, Result, Token, Tokens};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::CLAIM_WINDOW;
use super::dialect::{Dialect, Record, SessionId};
use super::pool::Leased;

#[derive(Default)]
pub(super) enum Seat<D: Dialect> {
    /// Nothing is had, and nothing asked for.
    #[default]
    Empty,
    /// It waits, in the server or for a connection.
    Waiting(Waiting<D>),
    /// It holds, as far as is known.
    Holding(Box<Holding<D>>),
    /// Its connection was given up, and the server may not have noticed.
    Ghost {
        session: SessionId,
        /// Whether it was known to hold.
        held: bool,
        /// When the server has ended it by itself.
        until: BootInstant,
    },
}

impl<D: Dialect> Seat<D> {
    pub(super) fn ghost(session: SessionId, claim: &Claim, held: bool) -> Self {
        // Twice, for the request may reach the server late.
        let until = Clock::Boot.now() + (claim.ttl + CLAIM_WINDOW).saturating_mul(2);
        Self::Ghost {
            session,
            held,
            until,
        }
    }
}

pub(super) struct Holding<D: Dialect> {
    pub(super) leased: Leased<D>,
    pub(super) claim: Claim,
    pub(super) mode: Mode,
    pub(super) tokens: Tokens,
    since: BootInstant,
    /// Whether it was written down that it waits.
    pub(super) listed: bool,
    /// What was written down of it last.
    pub(super) written: Option<Record>,
}

impl<D: Dialect> Holding<D> {
    pub(super) fn new(leased: Leased<D>, claim: &Claim, tokens: Tokens) -> Box<Self> {
        Box::new(Self {
            leased,
            claim: claim.clone(),
            mode: claim.mode,
            tokens,
            since: Clock::Boot.now(),
            listed: false,
            written: None,
        })
    }

    /// What to write down; of this claim, which has changed since if the lock was handed on.
    pub(super) fn record(&self, session: SessionId, claim: &Claim, token: Token) -> Record {
        Record {
            claim: claim.id,
            name: claim.name.clone(),
            mode: self.mode,
            tokens: self.tokens,
            token,
            owner: Arc::clone(&claim.owner),
            label: claim.label.clone(),
            ttl: claim.ttl,
            since: self.since,
            session,
        }
    }
}

/// A task that ends with its handle.
pub(super) struct Task(pub(super) JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A wait that goes on behind.
pub(super) struct Waiting<D: Dialect> {
    pub(super) task: Task,
    pub(super) outcome: Arc<Outcome<D>>,
}

impl<D: Dialect> Waiting<D> {
    /// Ends the wait: with the hold if it was just got, and with the connection that was given up.
    pub(super) async fn end(mut self) -> (Option<Box<Holding<D>>>, Option<SessionId>) {
        self.task.0.abort();
        // It was aborted, or had ended; both is well.
        let _ = (&mut self.task.0).await;
        let got = self.outcome.take().and_then(Result::ok);
        (got, self.outcome.session())
    }
}

/// What came of a wait.
pub(super) struct Outcome<D: Dialect> {
    state: Mutex<Told<D>>,
    news: Notify,
}

struct Told<D: Dialect> {
    session: Option<SessionId>,
    over: bool,
    taken: Option<Result<Box<Holding<D>>>>,
}

impl<D: Dialect> Default for Outcome<D> {
    fn default() -> Self {
        let state = Mutex::new(Told {
            session: None,
            over: false,
            taken: None,
        });
        let news = Notify::new();
        Self { state, news }
    }
}

impl<D: Dialect> Outcome<D> {
    fn state(&self) -> MutexGuard<'_, Told<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection on which it waits.
    pub(super) fn names(&self, session: SessionId) {
        self.state().session = Some(session);
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.state().session.clone()
    }

    pub(super) fn tell(&self, taken: Result<Box<Holding<D>>>) {
        let mut state = self.state();
        (state.taken, state.over) = (Some(taken), true);
        self.news.notify_one();
    }

    pub(super) fn take(&self) -> Option<Result<Box<Holding<D>>>> {
        self.state().taken.take()
    }

    /// Returns once the wait is over.
    pub(super) async fn told(&self) {
        if !self.state().over {
            self.news.notified().await;
        }
    }
}
