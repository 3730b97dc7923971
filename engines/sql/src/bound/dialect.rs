//! What the connection-bound engine needs from a database.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{self, Claim, Evict, LockView, Page, RecordChange};
use fencelock_core::{
    BootInstant, ClaimId, Error, Finding, LockName, Mode, Promises, Result, Token, Tokens,
};

use super::signal::CloseSignal;
use crate::Settings;

/// Names one connection at the server, and no other connection before or after it. The text is the dialect's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionId(pub String);

/// The record of a hold, or of a waiter (without tokens).
#[derive(Clone, Debug)]
pub struct Record {
    /// The claim that holds.
    pub claim: ClaimId,
    /// The lock.
    pub name: LockName,
    /// The mode of the hold.
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
    /// When the hold began.
    pub since: BootInstant,
    /// The connection to which the hold is bound.
    pub session: SessionId,
}

impl Record {
    /// Whether both agree in everything that may change during a hold.
    pub fn agrees_with(&self, other: &Self) -> bool {
        (self.token, self.mode, self.ttl) == (other.token, other.mode, other.ttl)
            && self.owner == other.owner
            && self.label == other.label
    }
}

/// The statements of one strategy on one kind of database.
///
/// A call may be dropped when its time is up. After that the connection still works, or its [`CloseSignal`] is closed. An error
/// is `Unavailable` if the connection can no longer be used.
#[async_trait]
pub trait Dialect: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// A connection. When it ends, also by a drop, the server frees what it holds, and its waits end.
    type Session: Send + 'static;

    /// Times and bounds from the URL.
    fn settings(&self) -> Settings;

    /// Whether the store was opened for inspection only: nothing is created and nothing is written.
    fn inspect_only(&self) -> bool;

    /// What this store promises, according to the server.
    async fn promises(&self, control: &mut Self::Session) -> Result<Promises>;

    /// Problems of the server as it is now, beyond the limits of the promises.
    async fn findings(&self) -> Result<Vec<Finding>>;

    /// Whether the server rolled a call back only because it conflicted with another one.
    fn is_conflict(error: &Error) -> bool;

    /// A connection that is ready for all calls below: the tables exist, and tokens are above all earlier ones.
    async fn connect(&self, signal: Arc<CloseSignal>) -> Result<Self::Session>;

    /// What names the connection at the server.
    fn session_id(&self, session: &Self::Session) -> SessionId;

    /// Lifts the token counter above this floor. Never called if the promises say that floors are refused.
    async fn raise_tokens(&self, session: &mut Self::Session, floor: Token) -> Result<()>;

    /// Acquires the lock if it is free, and draws tokens after that. From then on the server ends the connection if it is
    /// silent for `idle`.
    async fn try_acquire(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Option<Tokens>>;

    /// Acquires the lock, and waits for it in the server without a limit. Retries after errors after which a retry may succeed.
    async fn acquire(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        idle: Duration,
    ) -> Result<Tokens>;

    /// A sign of life. From then on the server ends the connection if it is silent for `idle`.
    async fn keep_alive(&self, session: &mut Self::Session, idle: Duration) -> Result<()>;

    /// Downgrades from exclusive mode to the claim's mode, without a gap. Draws new tokens before others can hold.
    async fn downgrade(&self, session: &mut Self::Session, claim: &Claim) -> Result<Tokens>;

    /// Releases the lock and keeps the connection. False if the connection did not hold the lock.
    async fn release(&self, session: &mut Self::Session, claim: &Claim) -> Result<bool>;

    /// Writes these records, and returns which claims of `asked` were asked to release.
    async fn record(
        &self,
        control: &mut Self::Session,
        records: &[Record],
        asked: &[ClaimId],
    ) -> Result<Vec<ClaimId>>;

    /// Deletes the record of a claim.
    async fn delete_record(&self, control: &mut Self::Session, claim: ClaimId) -> Result<()>;

    /// The lock as recorded, by open connections alone.
    async fn look(&self, control: &mut Self::Session, name: &LockName) -> Result<LockView>;

    /// Whether all holders of the lock are recorded.
    async fn is_recorded(&self, control: &mut Self::Session, name: &LockName) -> Result<bool>;

    /// At most `limit` locks that are recorded as held, by open connections alone, whose names come after `after`.
    async fn list(
        &self,
        control: &mut Self::Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Page<LockView>>;

    /// Ends the holder's connection, or notes that it was asked to release.
    async fn evict(
        &self,
        control: &mut Self::Session,
        name: &LockName,
        token: Token,
        how: Evict,
    ) -> Result<bool>;

    /// Whether that connection is still open.
    async fn is_open(&self, control: &mut Self::Session, session: &SessionId) -> Result<bool>;

    /// How often to check whether the connections that hold are still open, for drivers that do not report their end.
    fn check_interval(&self) -> Option<Duration> {
        None
    }

    /// Which of these connections have ended.
    async fn ended(
        &self,
        control: &mut Self::Session,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>> {
        let _ = (control, sessions);
        Ok(Vec::new())
    }

    /// Ends that connection, if it is still open, and deletes its records. Returns when it holds nothing more.
    async fn end(&self, control: &mut Self::Session, session: &SessionId) -> Result<()>;

    /// Makes the change, if there is one, and returns the store's record ([`Engine::record`](fencelock_core::Engine::record)),
    /// which has nothing to do with those of holds. Where its table is missing there is no record, and the first change has the
    /// table created.
    async fn store_record(
        &self,
        control: &mut Self::Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<engine::Record>;

    /// Deletes the records of ended connections, and rows that nobody uses. `last` says that this client does it no more, so it
    /// waits for another client that does it at this moment.
    async fn clean_up(&self, control: &mut Self::Session, last: bool) -> Result<()>;
}
