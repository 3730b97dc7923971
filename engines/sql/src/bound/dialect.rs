//! What the connection-bound engine needs to know of a database.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, Event, Evict, LockView, Page};
use fencelock_core::{
    BootInstant, ClaimId, Error, Finding, LockName, Mode, Promises, Result, Token, Tokens,
};
use tokio::sync::mpsc;

/// Times and bounds of a store, from its URL.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For the first connection.
    pub connect_timeout: Duration,
    /// For an answer, and for later connections.
    pub response_timeout: Duration,
    /// How many connections may hold or wait at once, the control connection not counted.
    pub max_connections: usize,
}

/// What names a connection at the server, and no other connection before or after it. The dialect's own text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId(pub String);

/// What is written down of a hold.
#[derive(Clone, Debug)]
pub struct Record {
    /// Who holds.
    pub claim: ClaimId,
    /// The lock.
    pub name: LockName,
    /// The mode it is held in.
    pub mode: Mode,
    /// All tokens of the grant.
    pub tokens: Tokens,
    /// The token in use.
    pub token: Token,
    /// The owner in use.
    pub owner: Arc<str>,
    /// The claim's label.
    pub label: Option<Arc<str>>,
    /// The claim's ttl.
    pub ttl: Duration,
    /// Since when it holds.
    pub since: BootInstant,
    /// The connection that it hangs on.
    pub session: SessionId,
}

impl Record {
    /// Whether nothing of what may change has changed.
    pub fn says_as_much_as(&self, other: &Self) -> bool {
        (self.token, self.mode, self.ttl) == (other.token, other.mode, other.ttl)
            && self.owner == other.owner
            && self.label == other.label
    }
}

/// Ties a connection to the claim that holds by it, so that its end is told at once.
pub struct Tie {
    state: Mutex<Tied>,
    tell: Option<mpsc::UnboundedSender<Event>>,
    on_cut: Box<dyn Fn() + Send + Sync>,
}

#[derive(Debug, Default)]
struct Tied {
    claim: Option<ClaimId>,
    cut: bool,
}

impl Tie {
    /// One that tells the loss to `tell`.
    pub fn new(tell: Option<mpsc::UnboundedSender<Event>>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            tell,
            on_cut: Box::new(|| {}),
        })
    }

    /// One that calls this when the connection has ended.
    pub fn with(on_cut: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            tell: None,
            on_cut: Box::new(on_cut),
        })
    }

    fn state(&self) -> MutexGuard<'_, Tied> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection has ended: for the dialect to call, as soon as it knows.
    pub fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        if let (Some(claim), Some(tell)) = (state.claim.take(), &self.tell) {
            // Nobody listens once the engine is gone.
            let _ = tell.send(Event::Lost(claim));
        }
        drop(state);
        (self.on_cut)();
    }

    /// Whether the connection has ended.
    pub fn is_cut(&self) -> bool {
        self.state().cut
    }

    /// From now on the connection's end is this claim's. False if it has ended already.
    pub fn bind(&self, claim: ClaimId) -> bool {
        let mut state = self.state();
        state.claim = (!state.cut).then_some(claim);
        !state.cut
    }

    /// The connection's end is nobody's loss any more. False if it has ended already.
    pub fn unbind(&self) -> bool {
        let mut state = self.state();
        state.claim = None;
        !state.cut
    }
}

/// The statements of one strategy on one kind of database.
///
/// A call may be dropped, when its time is up. The connection then goes on to work, or its tie is cut. Errors are
/// `Unavailable` if the connection is of no use any more.
#[async_trait]
pub trait Dialect: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// A connection; its end (also by a drop) frees what it holds and waits for.
    type Session: Send + 'static;

    /// Times and bounds from the URL.
    fn settings(&self) -> Settings;

    /// Whether the store was opened to look at it only: nothing is made and nothing is written.
    fn inspects(&self) -> bool;

    /// What this store promises, asked of the server.
    async fn promises(&self, control: &mut Self::Session) -> Result<Promises>;

    /// What stands between the server, as it is now, and what locks are for, beside the limits of its promises.
    async fn findings(&self) -> Result<Vec<Finding>>;

    /// Whether the server undid a call only because others were in its way.
    fn is_in_the_way(error: &Error) -> bool;

    /// A connection that is ready for all calls below: the store's tables are there, and tokens are above all of before.
    async fn connect(&self, tie: Arc<Tie>) -> Result<Self::Session>;

    /// What names the connection at the server.
    fn id(&self, session: &Self::Session) -> SessionId;

    /// Takes the lock if it is free, and draws tokens after that. The server ends the connection when it is silent for
    /// `idle` from then on.
    async fn try_take(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>>;

    /// The same, waiting in the server as long as it takes; errors that a retry mends are retried.
    async fn take(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Tokens>;

    /// A sign of life; the server ends the connection when it is silent for `idle` from then on.
    async fn keep(&self, session: &mut Self::Session, idle: Duration) -> Result<()>;

    /// From exclusive to the claim's mode, without a gap; draws new tokens before others can come in.
    async fn downgrade(&self, session: &mut Self::Session, claim: &Claim) -> Result<Tokens>;

    /// Lets go of the lock and keeps the connection. False if it did not hold.
    async fn give_back(&self, session: &mut Self::Session, claim: &Claim) -> Result<bool>;

    /// Writes down who holds, and tells which of `asked` were asked to let go.
    async fn record(
        &self,
        control: &mut Self::Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>>;

    /// Deletes what was written down of a claim.
    async fn forget(&self, control: &mut Self::Session, claim: ClaimId) -> Result<()>;

    /// The lock as it was written down, of live connections alone.
    async fn look(&self, control: &mut Self::Session, name: &LockName) -> Result<LockView>;

    /// Whether everybody who holds the lock was written down.
    async fn is_written(&self, control: &mut Self::Session, name: &LockName) -> Result<bool>;

    /// The locks that were written down, of live connections alone.
    async fn list(
        &self,
        control: &mut Self::Session,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>>;

    /// Ends the holder's connection, or notes that it was asked.
    async fn evict(
        &self,
        control: &mut Self::Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool>;

    /// Whether that connection is there still.
    async fn lives(&self, control: &mut Self::Session, session: &SessionId) -> Result<bool>;

    /// How often to look whether the connections that hold are there still, where nothing tells that they have ended.
    fn watch(&self) -> Option<Duration> {
        None
    }

    /// Which of these connections have ended.
    async fn gone(
        &self,
        control: &mut Self::Session,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>> {
        let _ = (control, sessions);
        Ok(Vec::new())
    }

    /// Ends that connection, if it is there still, and what was written down of it. Returns when it holds nothing more.
    async fn end(&self, control: &mut Self::Session, session: &SessionId) -> Result<()>;

    /// Deletes what connections left that are gone, and rows that nobody uses.
    async fn sweep(&self, control: &mut Self::Session) -> Result<()>;
}
