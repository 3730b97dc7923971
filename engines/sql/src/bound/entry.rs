use std::sync::Arc;

use fencelock_core::engine::Claim;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Mode, Result, Token, Tokens};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::dialect::{Dialect, Record, SessionId};
use super::pool::PooledSession;

#[derive(Default)]
pub(super) enum Entry<D: Dialect> {
    /// The claim has nothing, and asks for nothing.
    #[default]
    Empty,
    /// The claim waits, in the server or for a connection.
    Waiting(Waiting<D>),
    /// The claim holds, as far as the client knows.
    Holding(Box<Hold<D>>),
    /// The client gave the connection up, and the server may not have noticed.
    GivenUp {
        session: SessionId,
        /// Whether the claim was known to hold.
        held: bool,
        /// By then the server has ended the connection by itself.
        until: BootInstant,
    },
}

pub(super) struct Hold<D: Dialect> {
    pub(super) conn: PooledSession<D>,
    pub(super) claim: Claim,
    pub(super) mode: Mode,
    pub(super) tokens: Tokens,
    since: BootInstant,
    /// Whether the claim was recorded as a waiter.
    pub(super) listed: bool,
    /// The last record of it.
    pub(super) recorded: Option<Record>,
}

impl<D: Dialect> Hold<D> {
    pub(super) fn new(conn: PooledSession<D>, claim: &Claim, tokens: Tokens) -> Box<Self> {
        Box::new(Self {
            conn,
            claim: claim.clone(),
            mode: claim.mode,
            tokens,
            since: Clock::Boot.now(),
            listed: false,
            recorded: None,
        })
    }

    /// The record of this hold. `claim` is newer than the hold's own if the lock was handed over inside the process.
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

/// A wait that goes on in the background.
pub(super) struct Waiting<D: Dialect> {
    pub(super) task: Task,
    pub(super) outcome: Arc<Outcome<D>>,
}

impl<D: Dialect> Waiting<D> {
    /// Ends the wait. Returns the hold if the claim was just granted, and the connection that was given up.
    pub(super) async fn end(mut self) -> (Option<Box<Hold<D>>>, Option<SessionId>) {
        self.task.0.abort();
        // Aborted or finished: both end it.
        let _ = (&mut self.task.0).await;
        let granted = self.outcome.take().and_then(Result::ok);
        (granted, self.outcome.session())
    }
}

/// The outcome of a wait.
pub(super) struct Outcome<D: Dialect> {
    state: Mutex<Progress<D>>,
    changed: Notify,
}

struct Progress<D: Dialect> {
    session: Option<SessionId>,
    finished: bool,
    result: Option<Result<Box<Hold<D>>>>,
}

impl<D: Dialect> Default for Outcome<D> {
    fn default() -> Self {
        Self {
            state: Mutex::new(Progress {
                session: None,
                finished: false,
                result: None,
            }),
            changed: Notify::new(),
        }
    }
}

impl<D: Dialect> Outcome<D> {
    /// The claim waits on this connection.
    pub(super) fn waits_on(&self, session: SessionId) {
        self.state.lock().session = Some(session);
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.state.lock().session.clone()
    }

    pub(super) fn finish(&self, result: Result<Box<Hold<D>>>) {
        let mut state = self.state.lock();
        (state.result, state.finished) = (Some(result), true);
        self.changed.notify_one();
    }

    pub(super) fn take(&self) -> Option<Result<Box<Hold<D>>>> {
        self.state.lock().result.take()
    }

    /// Returns once the wait is over.
    pub(super) async fn finished(&self) {
        if !self.state.lock().finished {
            self.changed.notified().await;
        }
    }
}
