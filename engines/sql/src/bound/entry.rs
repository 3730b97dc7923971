use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Mode, Result, Token, Tokens};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::dialect::{Dialect, Record, SessionId};
use super::pool::PooledSession;
use super::queue::Ticket;

#[derive(Default)]
pub(super) enum Entry<D: Dialect> {
    /// The claim neither holds nor waits.
    #[default]
    Empty,
    /// The claim queues in this process for a connection. The server knows nothing of it.
    Queued(Arc<Ticket>),
    /// The claim waits in the server.
    Waiting(Waiting<D>),
    /// The claim holds, as far as the client knows.
    Holding(Box<Hold<D>>),
    /// The client gave the connection up, and the server may not have noticed.
    GivenUp {
        session: SessionId,
        /// Whether the claim was known to hold.
        held: bool,
        /// At this time the server has ended the connection by itself.
        until: BootInstant,
    },
}

pub(super) struct Hold<D: Dialect> {
    pub(super) conn: PooledSession<D>,
    pub(super) claim: Claim,
    pub(super) mode: Mode,
    pub(super) tokens: Tokens,
    since: BootInstant,
    /// Until when the server keeps the connection if it stays silent.
    until: BootInstant,
    /// Whether there may be a record of the claim.
    pub(super) listed: bool,
    /// The last record of the hold.
    pub(super) recorded: Option<Record>,
}

impl<D: Dialect> Hold<D> {
    pub(super) fn new(conn: PooledSession<D>, claim: &Claim, tokens: Tokens) -> Box<Self> {
        let now = Clock::Boot.now();
        Box::new(Self {
            conn,
            claim: claim.clone(),
            mode: claim.mode,
            tokens,
            since: now,
            until: now + claim.ttl,
            listed: false,
            recorded: None,
        })
    }

    /// The claim with a ttl that is not shorter than the rest of the connection's lease.
    pub(super) fn no_shorter(&self, claim: &Claim) -> Claim {
        let left = self.until.since(Clock::Boot.now());
        claim.clone().ttl(claim.ttl.max(left))
    }

    /// Notes a sign of life of the connection at this time, with this idle timeout.
    pub(super) fn lives(&mut self, at: BootInstant, idle: Duration) {
        self.until = at + idle;
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

/// A wait in the background.
pub(super) struct Waiting<D: Dialect> {
    pub(super) task: Task,
    pub(super) outcome: Arc<Outcome<D>>,
    /// The record of the waiter, which names the connection that it waits on.
    pub(super) record: Record,
    /// Whether the record may have been written, and whether it was.
    pub(super) listed: bool,
    pub(super) recorded: bool,
}

impl<D: Dialect> Waiting<D> {
    /// The result of the wait; `None` while it goes on.
    pub(super) fn take(&self) -> Option<Result<Box<Hold<D>>>> {
        let result = self.outcome.take()?;
        Some(result.map(|mut hold| {
            hold.listed = self.listed;
            hold
        }))
    }

    /// Ends the wait. Returns the hold if the claim was just granted, otherwise the connection that was given up.
    pub(super) async fn end(mut self) -> Result<Box<Hold<D>>, SessionId> {
        self.task.0.abort();
        // It was aborted or has finished.
        let _ = (&mut self.task.0).await;
        match self.take() {
            Some(Ok(hold)) => Ok(hold),
            _ => Err(self.record.session),
        }
    }
}

/// The outcome of a wait.
pub(super) struct Outcome<D: Dialect> {
    state: Mutex<Progress<D>>,
    changed: Notify,
}

struct Progress<D: Dialect> {
    finished: bool,
    result: Option<Result<Box<Hold<D>>>>,
}

impl<D: Dialect> Default for Outcome<D> {
    fn default() -> Self {
        Self {
            state: Mutex::new(Progress {
                finished: false,
                result: None,
            }),
            changed: Notify::new(),
        }
    }
}

impl<D: Dialect> Outcome<D> {
    pub(super) fn finish(&self, result: Result<Box<Hold<D>>>) {
        let mut state = self.state.lock();
        (state.result, state.finished) = (Some(result), true);
        self.changed.notify_one();
    }

    fn take(&self) -> Option<Result<Box<Hold<D>>>> {
        self.state.lock().result.take()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.state.lock().finished
    }

    /// Returns once the wait is over.
    pub(super) async fn finished(&self) {
        if !self.is_finished() {
            self.changed.notified().await;
        }
    }
}
