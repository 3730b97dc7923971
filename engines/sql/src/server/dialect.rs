//! What the lease engine needs from a database server: whole transactions, each in one request.

use std::fmt::{Debug, Display};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Event, HeldClaim, LockView, Record, RecordChange};
use fencelock_core::{ClaimId, Error, Finding, LockName, Promises, Token, Tokens};

use super::change::{Write, Written};
use super::error::Failure;
use super::message::Message;
use super::stored::{DbInstant, Queued, Snapshot};
use crate::lease::Waiter;

/// One kind of database server. `Display` names the store.
#[async_trait]
pub trait Dialect: Debug + Display + Send + Sync + 'static {
    /// A connection.
    type Session: Send;

    /// Connects to the server that takes writes, checks or creates the tables, and lifts the token counter to the time
    /// (see [`Dialect::lift_tokens`]).
    async fn connect(&self) -> Result<Self::Session, Error>;

    /// Drops a connection without waiting for anything.
    fn disconnect(&self, session: Self::Session);

    /// What the store promises, as the newest connection found it.
    fn promises(&self) -> Promises;

    /// What distinguishes its tables from those of others, as the first connection found it.
    fn identity(&self) -> String {
        self.to_string()
    }

    /// Problems of the server as it is now, beyond the limits of its promises.
    async fn findings(&self) -> Result<Vec<Finding>, Error>;

    /// Creates the tables that are missing.
    async fn create_tables(&self, session: &mut Self::Session) -> Result<(), Failure>;

    /// Lifts the token counter to the time if it is below: a server that was emptied, or a promoted replica that missed the
    /// last grants, continues above them.
    async fn lift_tokens(&self, session: &mut Self::Session) -> Result<(), Failure>;

    /// The lowest token that this connection may be granted. A lower one shows that the counter was lost.
    fn token_floor(&self, session: &Self::Session) -> Token;

    /// Notes that this connection was granted this token. Its next token is above it.
    fn saw_token(&self, session: &mut Self::Session, token: Token);

    /// Whether the store was opened for inspection only: nothing is created and nothing is written.
    fn inspect_only(&self) -> bool;

    /// Acquires a lock that has no gate, in one request: inserts the gate at [`first_version`](super::first_version), and
    /// then, in the same transaction, draws the tokens and stores the holder. `None` if there is a gate.
    async fn acquire_free(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Failure>;

    /// Puts a new claim in the queue in one request, if it certainly has to wait. `None` if it may not have to wait.
    async fn enqueue(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
    ) -> Result<Option<Queued>, Failure> {
        let _ = (session, claim);
        Ok(None)
    }

    /// Deletes a claim's hold that is live and not abandoned, and the gate if it has no other rows. This is one request in any
    /// case, so it takes effect even if no answer comes back. Databases that can deliver messages grant the lock to the next
    /// waiter, for a moment, and notify it. Returns whether the claim held.
    async fn release(&self, session: &mut Self::Session, claim: &Claim) -> Result<bool, Failure>;

    /// The rows of a lock, all of one moment, without locking any; `None` if there is no gate.
    async fn read(
        &self,
        session: &mut Self::Session,
        name: &LockName,
    ) -> Result<Option<Snapshot>, Failure>;

    /// The version of a lock's gate, as cheaply as possible. Waiters poll this.
    async fn version(
        &self,
        session: &mut Self::Session,
        name: &LockName,
    ) -> Result<Option<u64>, Failure>;

    /// Removes expired rows and makes a change, in one request and one transaction that cannot stay open.
    async fn write(
        &self,
        session: &mut Self::Session,
        write: &Write<'_>,
    ) -> Result<Written, Failure>;

    /// Whether messages for this waiter reach this process. Another process may have placed its claim before.
    fn hears(&self, waiter: &Waiter<DbInstant>) -> bool {
        let _ = waiter;
        true
    }

    /// Keeps a live waiter's place for `time` from now; messages for it go to this process. Returns whether it was there.
    async fn keep_place(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        ticket: i64,
        time: Duration,
    ) -> Result<bool, Failure>;

    /// Prolongs the live hold of a claim that is placed again, which has these tokens. The lease never becomes shorter: the
    /// request may arrive late, after renewals. Returns whether the claim holds.
    async fn prolong(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        first: Token,
    ) -> Result<bool, Failure>;

    /// Prolongs live holds (not abandoned ones) that have the named tokens, and stores their current tokens and owners. Returns
    /// for each whether it was asked to release; `None` if it does not hold.
    async fn renew(
        &self,
        session: &mut Self::Session,
        held: &[HeldClaim],
    ) -> Result<Vec<Option<bool>>, Failure>;

    /// These locks as people see them, without expired rows. Those without a gate may be missing.
    async fn views(
        &self,
        session: &mut Self::Session,
        names: &[LockName],
    ) -> Result<Vec<LockView>, Failure>;

    /// At most `limit` names, in the order of their bytes, of locks that are held: from `prefix` on, and after `after`.
    async fn held_names(
        &self,
        session: &mut Self::Session,
        prefix: &str,
        after: &str,
        limit: usize,
    ) -> Result<Vec<String>, Failure>;

    /// Some names with expired rows.
    async fn expired(&self, session: &mut Self::Session) -> Result<Vec<LockName>, Failure>;

    /// The name of a connection at the server. It is valid even after the connection was lost.
    fn connection_id(&self, session: &Self::Session) -> String;

    /// Makes sure that a lost connection does nothing more: ends it at the server if it is still open there. `false` if that is
    /// not certain (yet).
    async fn end_connection(&self, session: &mut Self::Session, id: &str) -> Result<bool, Failure>;

    /// The store's record of this scope, as it is after `change`, which takes effect if its version still is that of the
    /// change. If its table is missing, there is no record.
    async fn record(
        &self,
        session: &mut Self::Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record, Failure>;

    /// Notifies the process of a holder of an event, if the database can. Called after an eviction.
    async fn notify(&self, session: &mut Self::Session, event: Event) -> Result<(), Failure> {
        let _ = (session, event);
        Ok(())
    }

    /// Notes that a claim is in the queue, or will be by the next request, and that messages about it are wanted. Called before
    /// each request that checks whether it is the claim's turn.
    fn await_turn(&self, claim: &Claim) {
        let _ = claim;
    }

    /// Notes that the claim no longer waits.
    fn leave_queue(&self, claim: ClaimId) {
        let _ = claim;
    }

    /// Before the engine is closed: completes what releases have begun, such as waking others.
    async fn finish(&self) {}

    /// Ends the dialect's background tasks when the engine is closed.
    fn close(&self) {}

    /// Whether waiters of this process receive messages at present, so that they need not poll.
    fn is_listening(&self) -> bool {
        false
    }

    /// The next message. Databases that deliver none never return.
    async fn next_message(&self) -> Message {
        std::future::pending().await
    }
}
