//! The contract between the core and the code that talks to one kind of server, and its words.
//!
//! An engine knows *claims*: one wish for one lock, with an id chosen by the client before the first byte is sent, so
//! that every call can be repeated.

use std::fmt::{Debug, Display};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::{BootInstant, Clock};
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::promises::{Finding, Promises};
use crate::token::{ClaimId, Token, Tokens};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside other shared holders.
    Shared,
    /// Beside at most `of - 1` other permits.
    Permit {
        /// How many permits there are.
        of: NonZeroU32,
    },
}

impl Mode {
    /// The mode's letter in sequencers and in what is stored: `x`, `s` or `p`.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Exclusive => 'x',
            Self::Shared => 's',
            Self::Permit { .. } => 'p',
        }
    }

    /// The mode in words, as `show --json` has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit { .. } => "permit",
        }
    }
}

/// One wish for one lock: waiting or holding. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Chosen by the client; every call about this claim carries it.
    pub id: ClaimId,
    /// Who claims, for people and for joining (`FENCELOCK_OWNER`). At most 255 bytes, no control characters.
    pub owner: Arc<str>,
    /// The lock.
    pub name: LockName,
    /// How it is to be held.
    pub mode: Mode,
    /// The lease: how long the client may believe without renewal. The server keeps the lock for `ttl + lock_delay`.
    pub ttl: Duration,
    /// For how much longer the server keeps a lock whose holder vanished.
    pub lock_delay: Duration,
    /// Whether to take a place in line if the lock cannot be had at once.
    pub wait: bool,
    /// How many tokens the claim would like, at least 1. An engine that does not hand out ranges gives one.
    pub reserve: u32,
    /// Whether others must be able to read the token from the store as soon as it is granted. Without it an engine may
    /// write the token with the first renewal only, if that is faster.
    pub record: bool,
    /// A note for whoever looks. At most 255 bytes, no control characters.
    pub label: Option<Arc<str>>,
}

/// A claim that holds, as far as its client may believe.
#[derive(Clone, Copy, Debug)]
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

/// A place in line.
#[derive(Clone, Debug)]
pub struct Place {
    /// How many claims stand before this one, the holders not counted. `None` if the engine keeps no order.
    pub ahead: Option<u64>,
    /// When to call [`Engine::place`] again at the latest if nothing happens before.
    pub recheck: BootInstant,
    /// When the request that gave this place was sent.
    pub asked_at: BootInstant,
    /// The engine's own: what it needs to judge what comes next.
    pub mark: u64,
}

/// What [`Engine::place`] found.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The claim holds.
    Held(Grant),
    /// The claim stands in line.
    Waiting(Place),
    /// Somebody else holds, and the claim was not to wait. Nothing of the claim is left on the server.
    Busy,
}

/// A claim that holds, with the token it holds by now (it moves on with each hand-off inside the process).
#[derive(Clone, Debug)]
pub struct HeldClaim {
    /// The claim that the server knows.
    pub claim: Claim,
    /// The present token.
    pub token: Token,
}

/// What came of one renewal.
#[derive(Debug)]
pub enum Renewal {
    /// The lease counts anew; the store has the token now.
    Kept {
        /// Before the renewal was sent.
        counted_from: BootInstant,
        /// As in [`Grant::lease`].
        lease: Duration,
        /// Whether somebody asked for the lock back (see [`Evict::Ask`]).
        asked: bool,
    },
    /// The claim does not hold, or holds by another grant than that of the token.
    Lost,
    /// No answer, or none that tells.
    Unknown(Error),
}

/// How to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// In good order: the next in line may have it at once.
    Release,
    /// After a loss: the lock-delay still runs, and nothing is handed over.
    Abandon,
}

/// What came of [`Engine::withdraw`]. Every answer but `Unknown` is final: no earlier call of this claim can take effect
/// any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// It held, and holds no more.
    Released,
    /// It waited, and stands in line no more.
    LeftLine,
    /// It held, and its lease was over before.
    Expired,
    /// It neither holds nor waits; the lock may be somebody else's.
    NotOwner,
    /// An earlier call of this claim, of which no answer came, may still take effect. Withdraw again.
    Unknown,
}

/// What a store tells of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This claim holds no more.
    Lost(ClaimId),
    /// Somebody asks this claim to let go.
    Asked(ClaimId),
}

/// How to take a lock from its holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    /// At once; the holder is told if the engine can.
    Release,
    /// The holder is asked to let go when it can.
    Ask,
}

/// A lock as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// The lock.
    pub name: LockName,
    /// Who holds it; empty if it is free.
    pub holders: Vec<HolderView>,
    /// Who waits, in order if the engine keeps one; engines may cut a long line after 1000.
    pub waiters: Vec<WaiterView>,
}

impl LockView {
    /// A free lock.
    #[must_use]
    pub const fn free(name: LockName) -> Self {
        Self {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
        }
    }

    /// The hold of an owner, if it is there and its token is known, with what may be believed of it according to this view,
    /// which was asked for at `asked`.
    #[must_use]
    pub fn vouch(self, owner: &str, asked: BootInstant) -> Option<(HolderView, Grant)> {
        let mut holders = self.holders.into_iter();
        let holder = holders.find(|holder| holder.owner == owner)?;
        let grant = Grant {
            tokens: Tokens::one(holder.token?),
            counted_from: asked,
            lease: holder.ttl_left?.saturating_sub(holder.lock_delay),
            recorded: true,
        };
        Some((holder, grant))
    }

    /// The highest token among the holders.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        self.holders.iter().filter_map(|holder| holder.token).max()
    }
}

/// One who holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Its claim; `None` if another kind of client holds the lock.
    pub claim: Option<ClaimId>,
    /// Its owner text, or what a foreign client left.
    pub owner: String,
    /// Its token; `None` if it is not recorded (yet).
    pub token: Option<Token>,
    /// How it holds.
    pub mode: Mode,
    /// How long the server will keep the lock for it without renewal, lock-delay included; `None`: without end.
    pub ttl_left: Option<Duration>,
    /// The lock-delay within `ttl_left`.
    pub lock_delay: Duration,
    /// For how long it has held; `None` if the store does not know.
    pub held: Option<Duration>,
    /// Its label.
    pub label: Option<String>,
}

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Its owner text.
    pub owner: String,
    /// How it wants to hold.
    pub mode: Mode,
    /// Its label, where the store keeps the labels of waiters.
    pub label: Option<String>,
}

/// Where to go on with a listing; made by the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub String);

/// A part of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// What was found.
    pub items: Vec<T>,
    /// Where the next part begins; `None` after the last.
    pub next: Option<Cursor>,
}

/// The code that talks to one kind of server. `Debug` and `Display` name the store without its password.
///
/// # The promise to the core
/// * No call panics, and none waits longer than the engine's response timeout (but `changed`, `events` and `look` with
///   `unlike`, which wait for something to happen).
/// * Every call about a claim is idempotent by the claim's id.
/// * A request may take effect late, after others of the same claim, where another process goes on with the claim
///   ([`Promises::portable`]). So `place` never shortens a lease, a renewal is for one grant alone, and an engine that
///   gives back a grant of which the store told it unasked names that grant's token: it must not end a later one.
///
/// # The core's promise
/// * No call in flight is dropped, but `changed`, `events` and `look`, which hold nothing on the server.
/// * For one claim, calls come one at a time, in order.
/// * A claim that was placed is withdrawn in the end, also after a loss; [`Standing::Busy`] needs no withdrawal.
#[async_trait]
pub trait Engine: Debug + Display + Send + Sync + 'static {
    /// What this store promises, as it was found at open.
    fn promises(&self) -> Promises;

    /// The clock that this engine's instants are of.
    fn clock(&self) -> Clock;

    /// Take the lock, or a place in line. Calling again reports, prolongs, and keeps the place.
    /// A weaker mode on a claim that holds downgrades it, with a new token.
    ///
    /// On a claim that holds, the lease then ends at the later of two times: when it would have ended, and the claim's ttl
    /// from now. It is never shortened, and the token stays (but for a downgrade).
    async fn place(&self, claim: &Claim) -> Result<Standing>;

    /// Returns when the standing may have changed; it may carry the grant itself. May be dropped and called again.
    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>>;

    /// Prolong many holds in as few round trips as the engine can; one that fails does not fail the others. Answers in
    /// the order of `held`. Also records each token in the store.
    ///
    /// Each is for one grant alone: if the store has the claim with tokens among which [`HeldClaim::token`] is not, it is
    /// [`Renewal::Lost`], and nothing changes. The lease then is the claim's ttl from now, also if that is shorter than what
    /// was left.
    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal>;

    /// Release, leave the line, or undo a call of unknown outcome.
    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn>;

    /// What the store tells of its own accord, one event a call. One caller per store. May be dropped. Engines with
    /// nothing to tell never return.
    async fn events(&self) -> Result<Event>;

    /// The lock as it is: at once without `unlike`, else when its highest token is another than that (a free lock has
    /// none), looked at by polling if the engine cannot do better. May be dropped.
    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView>;

    /// The hold of an owner in another process, with what a process that joins it may believe; `None` if this owner does
    /// not hold. As good as [`look`](Engine::look) where the store counts down what is left; an engine whose store does not
    /// asks the holder itself. May be dropped.
    async fn vouch(&self, name: &LockName, owner: &str) -> Result<Option<(HolderView, Grant)>> {
        let asked = self.clock().now();
        let view = self.look(name, None).await?;
        Ok(view.vouch(owner, asked))
    }

    /// The locks that are held and whose name begins with `prefix`, a part at a time, in no particular order. `limit`
    /// is a wish.
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>>;

    /// Force-release or ask for release, fenced: only the holder with this very token (or with this token in its range)
    /// is meant. `false` if it does not hold. Which token of a range is in use, the store does not know: within a process
    /// the lock may have been handed on since.
    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool>;

    /// What stands between this store, as it is now, and what locks are for. If the engine has no more to say, that is the
    /// limits among its [promises](Engine::promises).
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let limits = self.promises().limits;
        Ok(limits.into_iter().map(Finding::from).collect())
    }

    /// Ends connections. Later calls answer [`Error::Closed`].
    async fn close(&self) -> Result<()>;
}
