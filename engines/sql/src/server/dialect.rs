//! What the lease engine asks of a database server: whole transactions, each in one request.
//!
//! A lock is a *gate* (one row per name, with a version) and the rows of its holders and its line. Nobody keeps a
//! transaction open while it thinks: an engine reads without locking, asks the rules of [`lease`](crate::lease) what may
//! be done, and writes in a single request that takes effect only if the gate's version is still the one that was read.
//! So a client that is stopped or cut off between two requests has nothing locked.

use std::fmt::{Debug, Display};
use std::ops::Add;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, Cursor, Event, HeldClaim, LockView, Page};
use fencelock_core::{Cause, ClaimId, Error, Finding, LockName, Promises, Token, Tokens};

use super::waiters::Pushed;
use crate::lease::{Holder, Rows};

/// An instant on the database's clock: microseconds since the beginning of 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DbInstant(pub u64);

impl DbInstant {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for DbInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

/// A duration as it is stored. A hundred years fit.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lock as it was read.
#[derive(Debug)]
pub struct Seen {
    /// The database's time of reading.
    pub now: DbInstant,
    /// Of the gate.
    pub version: u64,
    /// The last token drawn, of any lock; 0 where nobody is granted a lock by another.
    pub drawn: Token,
    /// The holders and the line.
    pub rows: Rows<DbInstant>,
}

/// A place in line, at its end.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    /// Of the gate, by then.
    pub version: u64,
    /// As in [`Seen`].
    pub drawn: Token,
    /// How many stand before it.
    pub ahead: u64,
    /// How long the first of those who hold has left.
    pub left: Option<Duration>,
}

/// A change of a lock's rows, beside the removal of the dead.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Draw tokens and store a holder; its place in line is over.
    Grant {
        /// Whose it is.
        claim: &'a Claim,
        /// The place in line, if it had one.
        ticket: Option<i64>,
        /// The hold of this claim that the new one replaces.
        instead: Option<&'a Holder<DbInstant>>,
    },
    /// Put the claim in line.
    Stand {
        /// Who waits.
        claim: &'a Claim,
        /// Its place.
        ticket: i64,
    },
    /// Take it out of line.
    LeaveLine {
        /// Its place.
        ticket: i64,
    },
    /// Delete the hold.
    Release {
        /// The hold.
        holder: &'a Holder<DbInstant>,
    },
    /// Let only the lock-delay of the hold run.
    Abandon {
        /// The hold.
        holder: &'a Holder<DbInstant>,
        /// For how long the lock stays taken.
        lock_delay: Duration,
    },
    /// Note that the hold is asked for.
    Ask {
        /// The hold.
        holder: &'a Holder<DbInstant>,
    },
    /// Nothing but the removal of the dead.
    Bury,
}

/// A [`Change`] with all that it depends on.
#[derive(Debug)]
pub struct Write<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The gate's version as it was read; nothing is written if it is another one by now.
    pub version: u64,
    /// The holders that were past their expiry. If one of them is not (its renewal came in meanwhile), nothing but
    /// removals may be done.
    pub dead_holders: Vec<&'a Holder<DbInstant>>,
    /// The tickets of the waiters that were past theirs; they go in any case.
    pub dead_waiters: Vec<i64>,
    /// What to do.
    pub change: Change<'a>,
    /// Whether one claim holds then, and nobody is in line.
    pub alone: bool,
    /// Whether the gate has nothing behind it then, and goes as well.
    pub last: bool,
    /// Those in line who may hold now, and where their processes hear it.
    pub call: Vec<(ClaimId, Option<Vec<u8>>)>,
}

/// What came of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was done. The tokens are those of a grant.
    Done(Option<Tokens>),
    /// What was read holds no more: read again.
    Stale,
}

/// Something that another process said through the database; only some can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It may be this waiter's turn.
    Turn(ClaimId),
    /// This waiter was granted the lock by whoever released it.
    Granted(Pushed),
    /// Something was done to a holder.
    Held(Event),
    /// Any of it may have been missed.
    Gap,
}

/// Why a request came to nothing.
#[derive(Debug)]
pub enum Trouble {
    /// A deadlock, a lock that was waited for too long, a failed serialization: rolled back, try again.
    Again(Cause),
    /// The connection is gone; whether the request was carried out is not known.
    Gone(Cause),
    /// No answer in time; the same, and the connection is of no more use.
    Silent,
    /// This server takes no writes (any more): look for the one that does.
    Moved(Cause),
    /// The tables are not there.
    NoSchema(Cause),
    /// For the caller.
    Told(Error),
}

/// One kind of database server.
#[async_trait]
pub trait Dialect: Debug + Display + Send + Sync + 'static {
    /// A connection.
    type Session: Send;

    /// Connects to the server that takes writes, makes sure of the tables, and lifts the counter of tokens to the time
    /// (see [`Dialect::seed`]). `Display` of the dialect names the store.
    async fn connect(&self) -> Result<Self::Session, Error>;

    /// Lets a connection go without waiting for anything.
    fn disconnect(&self, session: Self::Session);

    /// What the store promises, as the newest connection found it.
    fn promises(&self) -> Promises;

    /// What stands between the server, as it is now, and what locks are for, beside the limits of its promises.
    async fn findings(&self) -> Result<Vec<Finding>, Error>;

    /// Makes the tables, where they are missing.
    async fn make_schema(&self, session: &mut Self::Session) -> Result<(), Trouble>;

    /// Lifts the counter of tokens to the time if it is below: a server that was emptied, or was a replica that had not
    /// heard of the last grants, goes on above them.
    async fn seed(&self, session: &mut Self::Session) -> Result<(), Trouble>;

    /// The first token that [`Dialect::seed`] allowed this connection. A lower one shows that the counter was lost.
    fn floor(&self, session: &Self::Session) -> Token;

    /// A grant over this connection had this token: the next one is above it.
    fn saw(&self, session: &mut Self::Session, token: Token);

    /// Whether the store was opened to look at it only: nothing is made and nothing is written.
    fn inspects(&self) -> bool;

    /// Takes a lock whose gate is not there, in one request: sets up the gate at [`first_version`], and then, in the same
    /// transaction, draws the tokens and stores the holder. `None` if there is a gate.
    async fn take_free(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
    ) -> Result<Option<Tokens>, Trouble>;

    /// Puts a claim in line in one request, if it is not here already and certainly has to wait. `None` if that is not so,
    /// or not known.
    async fn queue(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
    ) -> Result<Option<Queued>, Trouble> {
        let _ = (session, claim);
        Ok(None)
    }

    /// Deletes a claim's hold that is live and not abandoned, and the gate if nothing else stands behind it, in one
    /// request whatever else stands there: what was sent takes effect even if no answer comes back. Databases that can
    /// pass something on grant the lock to the next in line, for a moment, and tell it. Whether it held.
    async fn release(&self, session: &mut Self::Session, claim: &Claim) -> Result<bool, Trouble>;

    /// The rows of a lock, all of one moment, without locking any; `None` if there is no gate.
    async fn read(
        &self,
        session: &mut Self::Session,
        name: &LockName,
    ) -> Result<Option<Seen>, Trouble>;

    /// The version of a lock's gate, as cheaply as possible; what waiters poll.
    async fn version(
        &self,
        session: &mut Self::Session,
        name: &LockName,
    ) -> Result<Option<u64>, Trouble>;

    /// Removes the dead and makes a change, in one request and one transaction that cannot stay open.
    async fn write(
        &self,
        session: &mut Self::Session,
        write: &Write<'_>,
    ) -> Result<Written, Trouble>;

    /// Keeps a live waiter's place until `for_` from now. Whether it was there.
    async fn keep_place(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        ticket: i64,
        for_: Duration,
    ) -> Result<bool, Trouble>;

    /// Prolongs the live hold of a claim that is placed again, which has these tokens. Its lease is never made shorter: the
    /// place may come late, after renewals. Whether it holds.
    async fn prolong(
        &self,
        session: &mut Self::Session,
        claim: &Claim,
        first: Token,
    ) -> Result<bool, Trouble>;

    /// Prolongs live holds (not abandoned ones) that have the tokens named, and stores the tokens and owners that they have by
    /// now. For each, whether it was asked for; `None` if it does not hold.
    async fn renew(
        &self,
        session: &mut Self::Session,
        held: &[HeldClaim],
    ) -> Result<Vec<Option<bool>>, Trouble>;

    /// The lock as people see it: the live.
    async fn look(&self, session: &mut Self::Session, name: &LockName)
    -> Result<LockView, Trouble>;

    /// Locks that are held.
    async fn list(
        &self,
        session: &mut Self::Session,
        prefix: &str,
        at: Option<&Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>, Trouble>;

    /// Some names with rows past their expiry.
    async fn dead(&self, session: &mut Self::Session) -> Result<Vec<LockName>, Trouble>;

    /// How a connection can be found again at the server after it was lost.
    fn trace(&self, session: &Self::Session) -> String;

    /// Makes sure that nothing more comes of a connection that was lost: ends it at the server if it is still there.
    /// `false` if that cannot be told (yet).
    async fn lay_to_rest(&self, session: &mut Self::Session, trace: &str) -> Result<bool, Trouble>;

    /// Tells the process of a holder what was done to it, if the database can; it is called after an eviction.
    async fn tell(&self, session: &mut Self::Session, event: Event) -> Result<(), Trouble> {
        let _ = (session, event);
        Ok(())
    }

    /// Whether waiters of this process are told at present, so that they need not ask.
    fn rings(&self) -> bool {
        false
    }

    /// What other processes say. Databases through which nothing can be said never return.
    async fn hear(&self) -> News {
        std::future::pending().await
    }
}

/// The version at which [`Dialect::take_free`] sets a gate up: random, so that no two gates of one name begin alike.
pub fn first_version(claim: ClaimId) -> u64 {
    let (high, low) = claim.as_bytes().split_at(8);
    let number = |bytes: &[u8]| {
        let eight = bytes.first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(eight)
    };
    // Two bits stay free for counting on, and for databases whose integers are signed.
    (number(high) ^ number(low).rotate_left(16)) >> 2
}
