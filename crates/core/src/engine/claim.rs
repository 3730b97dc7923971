//! The types of the contract: a claim, its grant, its place in the queue, and how it ends.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use super::promises::{Floor, LeaseKind, Promises};
use super::setters::setters;
use crate::types::{BootInstant, ClaimId, Error, LockName, Mode, Result, Token, Tokens};

/// No claim has a higher [`floor`](Claim#structfield.floor): tokens are below [`Token::END`], and there must be room for tokens
/// above the floor.
pub const MAX_FLOOR: Token = Token(1 << 52);

/// One request for one lock, which waits or holds. Cheap to clone.
///
/// Made by [`Claim::new`]; each method with the name of a field sets that field.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let id = ClaimIds::new()?.next();
/// let claim = Claim::new(id, "me", LockName::new("report")?)
///     .mode(Mode::Shared)
///     .ttl(Duration::from_secs(10))
///     .wait(false)
///     .label("by hand");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Chosen by the client, and part of every call about this claim.
    pub id: ClaimId,
    /// The owner, for people and for a process that joins the hold (`FENCELOCK_OWNER`). At most 255 bytes, no control
    /// characters.
    pub owner: Arc<str>,
    /// The lock.
    pub name: LockName,
    /// The mode in which to hold.
    pub mode: Mode,
    /// The lease: how long the client may believe without renewal. The server keeps the lock for `ttl + lock_delay`.
    pub ttl: Duration,
    /// How much longer the server keeps a lock whose holder vanished.
    pub lock_delay: Duration,
    /// Whether to join the queue if the lock is not granted at once.
    pub wait: bool,
    /// How many tokens the claim would like, at least 1. An engine that does not hand out ranges gives one.
    pub reserve: u32,
    /// Whether others must be able to read the token from the store as soon as it is granted. Without it an engine may
    /// write the token with the first renewal only, if that is faster.
    pub record: bool,
    /// The tokens of its grant are above this; 0 for none. If the store has one counter ([`Floor::Store`]), the claim raises
    /// it, so all later grants are above the floor, too. A claim has the same floor from its first call on. A claim that
    /// already holds with a lower token keeps that token.
    pub floor: Token,
    /// A note for people. At most 255 bytes, no control characters.
    pub label: Option<Arc<str>>,
}

impl Claim {
    /// An exclusive claim that waits, for a lease of 30 s, one token, no lock-delay and no label.
    #[must_use]
    pub fn new(id: ClaimId, owner: impl Into<Arc<str>>, name: LockName) -> Self {
        Self {
            id,
            owner: owner.into(),
            name,
            mode: Mode::Exclusive,
            ttl: Duration::from_secs(30),
            lock_delay: Duration::ZERO,
            wait: true,
            reserve: 1,
            record: false,
            floor: Token(0),
            label: None,
        }
    }

    setters! {
        mode: Mode, ttl: Duration, lock_delay: Duration, wait: bool, reserve: u32, record: bool,
        floor: Token,
    }

    /// Sets [`label`](Self#structfield.label).
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Checks the floor. An engine calls this before it sends anything about a claim.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the claim has a floor and the store promises none, [`Error::Invalid`] if the floor is above
    /// [`MAX_FLOOR`].
    pub fn check_floor(&self, store: &(impl Display + ?Sized), promises: &Promises) -> Result<()> {
        if self.floor > Token(0) && promises.floor == Floor::Refused {
            let why = "the tokens of this kind of store cannot be raised";
            return Err(Error::unsupported(
                store,
                "a grant above a given token",
                why,
            ));
        }
        check_floor(self.floor)
    }
}

/// Checks a floor for the counters of a store. An engine calls this in [`Engine::raise_tokens`](super::Engine::raise_tokens).
///
/// # Errors
/// [`Error::Invalid`] if it is above [`MAX_FLOOR`].
///
/// ```
/// # use fencelock_core::Token;
/// use fencelock_core::engine::{MAX_FLOOR, check_floor};
///
/// assert!(check_floor(MAX_FLOOR).is_ok());
/// assert!(check_floor(Token(MAX_FLOOR.get() + 1)).is_err());
/// ```
pub fn check_floor(floor: Token) -> Result<()> {
    match floor <= MAX_FLOOR {
        true => Ok(()),
        false => {
            let why = format!("it leaves no room for the tokens above it; at most {MAX_FLOOR}");
            Err(Error::invalid("floor", floor.to_string(), why))
        }
    }
}

/// A claim that holds, and what its client may believe.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let lease = Duration::from_secs(10);
/// let grant = Grant::new(Tokens::one(Token(34)), Clock::Boot.now(), lease);
/// // An engine whose first renewal writes the token:
/// assert!(!grant.recorded(false).recorded);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// Its tokens.
    pub tokens: Tokens,
    /// The lease counts from here: before the request that took effect was sent.
    pub counted_from: BootInstant,
    /// How long the client may believe from then on, before the core's drift margin. The server keeps the lock for at
    /// least this long plus the lock-delay.
    pub lease: Duration,
    /// Whether the store knows the token already (see [`Claim::record`]).
    pub recorded: bool,
}

impl Grant {
    /// A grant whose token the store knows.
    #[must_use]
    pub const fn new(tokens: Tokens, counted_from: BootInstant, lease: Duration) -> Self {
        Self {
            tokens,
            counted_from,
            lease,
            recorded: true,
        }
    }

    setters! { recorded: bool }
}

/// A place in the queue.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let recheck = Clock::Boot.now() + Duration::from_secs(5);
/// let place = Place::new(recheck).ahead(2);
/// assert_eq!(place.ahead, Some(2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Place {
    /// How many waiters are before this one; holders are not counted. `None` if the engine keeps no order.
    pub ahead: Option<u64>,
    /// When [`Engine::place`](super::Engine::place) must be called again at the latest.
    pub recheck: BootInstant,
    /// Why the store grants nothing at this time, if it does not. A request that gives up reports this reason, and not that
    /// another holds the lock.
    pub stalled: Option<Cow<'static, str>>,
}

impl Place {
    /// A place with only the time of the next call.
    #[must_use]
    pub const fn new(recheck: BootInstant) -> Self {
        Self {
            ahead: None,
            recheck,
            stalled: None,
        }
    }

    /// Sets why the store grants nothing at this time.
    #[must_use]
    pub fn stalled(mut self, why: impl Into<Cow<'static, str>>) -> Self {
        self.stalled = Some(why.into());
        self
    }

    setters! { ahead: u64 }
}

/// The answer of [`Engine::place`](super::Engine::place).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Standing {
    /// The claim holds.
    Held(Grant),
    /// The claim waits in the queue.
    Waiting(Place),
    /// Another claim holds, and this one must not wait. The server keeps nothing of the claim.
    Busy,
    /// The claim is over, and its id must not be placed again. It belonged to another process (such as a replica of the lock
    /// service), which has ended it or cannot be reached. The core withdraws it like every claim that was placed. If it still
    /// wants the lock, it makes a new claim, with a new id, at the end of the queue. An engine whose claims belong to its own
    /// process takes a new place itself and never returns this.
    Ended,
}

/// A claim that holds, with its present token (which changes with each hand-off inside the process).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldClaim {
    /// The claim that the server knows.
    pub claim: Claim,
    /// The present token.
    pub token: Token,
    /// Whether its renewal sets the lease even if the lease then ends sooner. Otherwise a renewal never shortens.
    pub shorten: bool,
}

impl HeldClaim {
    /// A claim with its present token, whose renewal does not shorten.
    #[must_use]
    pub const fn new(claim: Claim, token: Token) -> Self {
        Self {
            claim,
            token,
            shorten: false,
        }
    }

    setters! { shorten: bool }
}

/// The outcome of one renewal.
///
/// ```
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// # use std::time::Duration;
/// let counted_from = Clock::Boot.now();
/// // … the server is asked …
/// let renewal = Renewal::kept(counted_from, Duration::from_secs(10), false);
/// assert!(matches!(renewal, Renewal::Kept { asked: false, .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// The lease starts again; the store has the token now.
    #[non_exhaustive]
    Kept {
        /// An instant before the renewal was sent.
        counted_from: BootInstant,
        /// As in [`Grant::lease`].
        lease: Duration,
        /// Whether another client asked for the lock (see [`Evict::Ask`](super::Evict::Ask)).
        asked: bool,
    },
    /// The claim does not hold, or holds by another grant than that of the token.
    Lost,
    /// The claim does not hold: what its hold depended on has ended.
    Ended(LeaseKind),
    /// No answer, or an answer that leaves the outcome open.
    Unknown(Error),
}

impl Renewal {
    /// [`Renewal::Kept`].
    #[must_use]
    pub const fn kept(counted_from: BootInstant, lease: Duration, asked: bool) -> Self {
        Self::Kept {
            counted_from,
            lease,
            asked,
        }
    }
}

/// How to withdraw a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The normal release: the next waiter may have the lock at once.
    Release,
    /// After a loss: the lock-delay still runs, and nothing is handed over.
    Abandon,
}

/// The outcome of [`Engine::withdraw`](super::Engine::withdraw). It is final: no earlier call of this claim can take effect
/// any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Withdrawn {
    /// It held, and no longer holds.
    Released,
    /// It waited, and has left the queue.
    LeftQueue,
    /// It had held, but its lease had already ended.
    Expired,
    /// It neither held nor waited; another claim may hold the lock.
    NotOwner,
}

/// An event that the store reports by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This claim no longer holds: another client ended it.
    Lost(ClaimId),
    /// This claim no longer holds: what its hold depended on has ended.
    Ended(ClaimId, LeaseKind),
    /// Another client asks this claim to release the lock.
    Asked(ClaimId),
}
