//! What a store can and cannot promise.

use std::time::Duration;

use super::setters::setters;

/// The order in which waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// First come, first served, over all processes.
    Fifo,
    /// None.
    Unordered,
}

impl Order {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Unordered => "none",
        }
    }
}

/// Which tokens [`Claim::floor`](super::Claim#structfield.floor) raises, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Floor {
    /// A claim with a floor is refused.
    Refused,
    /// The tokens of the claim's name, and perhaps of some others: the store has several counters.
    Name,
    /// The tokens of all names: the store has one counter.
    Store,
}

impl Floor {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "none",
            Self::Name => "name",
            Self::Store => "store",
        }
    }
}

/// What ends a hold whose client is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseKind {
    /// A lease of its own, renewed by the client.
    Lease,
    /// A session that all holds of a client share.
    Session,
    /// A connection: the hold ends with it.
    Connection,
}

impl LeaseKind {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Session => "session",
            Self::Connection => "connection",
        }
    }
}

/// How a waiter learns that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// A message wakes it. It polls the store only as a fallback.
    Push,
    /// It polls the store.
    Poll,
}

impl Wake {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Poll => "poll",
        }
    }
}

/// What the store keeps of its grants after it was killed or lost power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Every grant that a client has seen.
    Durable,
    /// Everything after a crash of the process; the last moments may be missing after a loss of power.
    Process,
    /// Nothing.
    Volatile,
}

impl Durability {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Process => "process",
            Self::Volatile => "volatile",
        }
    }
}

/// What an engine promises on the store as it was found when it was opened. What is not promised is refused, never imitated.
///
/// Made by [`Promises::new`] or [`Promises::full`]; each method with the name of a field sets that field.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::engine::*;
/// # fn main() -> Result<()> {
/// let promises = Promises::new("toy", "client and store share one clock")
///     .shared(true)
///     .min_ttl(Duration::from_millis(10));
/// assert!(promises.shared && !promises.permits);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Promises {
    /// The engine: "redis", "sqlite".
    pub engine: &'static str,
    /// The order of waiters.
    pub order: Order,
    /// Whether there is shared mode.
    pub shared: bool,
    /// Whether there are permits.
    pub permits: bool,
    /// Whether there is a lock-delay.
    pub lock_delay: bool,
    /// Whether a grant may carry a range of tokens, for hand-off inside a process.
    pub ranges: bool,
    /// Whether another process may continue a claim if it knows the claim's id. It may place the claim again (which returns the
    /// grant or the place in the queue), renew it, and withdraw it.
    pub portable: bool,
    /// Whether the store keeps a record, which a set of stores needs ([`Engine::record`](super::Engine::record)).
    pub record: bool,
    /// Whether another store keeps the record, so that the record outlives this store's tokens.
    pub record_apart: bool,
    /// What a claim with a floor raises.
    pub floor: Floor,
    /// What ends a hold whose client is gone.
    pub lease: LeaseKind,
    /// How waiters wake.
    pub wake: Wake,
    /// What survives a crash.
    pub durability: Durability,
    /// What must be true of clocks for mutual exclusion, as a sentence.
    pub clock: &'static str,
    /// The shortest ttl.
    pub min_ttl: Duration,
    /// The longest `ttl + lock_delay`.
    pub max_ttl: Duration,
    /// The shortest time for which the store keeps a grant that a waiter got and has not confirmed.
    pub claim_window: Duration,
    /// What this store, as it was found, cannot promise; empty if nothing is known. [`Finding::purpose`] says what each one
    /// endangers.
    pub limits: Vec<Finding>,
}

impl Promises {
    /// Exclusive leases of 100 ms to 100 years for waiters that poll the store, in no order, lost in a crash. Nothing more.
    #[must_use]
    pub const fn new(engine: &'static str, clock: &'static str) -> Self {
        Self {
            engine,
            order: Order::Unordered,
            shared: false,
            permits: false,
            lock_delay: false,
            ranges: false,
            portable: false,
            record: false,
            record_apart: false,
            floor: Floor::Refused,
            lease: LeaseKind::Lease,
            wake: Wake::Poll,
            durability: Durability::Volatile,
            clock,
            min_ttl: Duration::from_millis(100),
            max_ttl: Duration::from_secs(100 * 365 * 86_400),
            claim_window: Duration::from_millis(100),
            limits: Vec::new(),
        }
    }

    /// Everything that the contract has: first come, first served, shared mode, permits, a lock-delay, ranges of tokens, and
    /// claims that another process may continue.
    #[must_use]
    pub fn full(engine: &'static str, clock: &'static str) -> Self {
        Self {
            order: Order::Fifo,
            shared: true,
            permits: true,
            lock_delay: true,
            ranges: true,
            portable: true,
            ..Self::new(engine, clock)
        }
    }

    setters! {
        order: Order, shared: bool, permits: bool, lock_delay: bool, ranges: bool, portable: bool, record: bool,
        record_apart: bool,
        floor: Floor,
        lease: LeaseKind, wake: Wake, durability: Durability, min_ttl: Duration, max_ttl: Duration, claim_window: Duration,
        limits: Vec<Finding>,
    }
}

/// What a lock is for.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let at_risk = client.promises().limits.iter().filter(|limit| limit.purpose == Purpose::Correctness);
/// assert_eq!(at_risk.count(), 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// A rare double run costs only money.
    #[default]
    Efficiency,
    /// A double run does damage.
    Correctness,
}

impl Purpose {
    /// As one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Efficiency => "efficiency",
            Self::Correctness => "correctness",
        }
    }
}

/// Something about a store that its operator should know.
///
/// ```
/// # use fencelock_core::*;
/// let finding = Finding::against_correctness("a restart forgets every lock", "set appendonly yes");
/// assert_eq!(finding.purpose, Purpose::Correctness);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The purpose that it endangers. What endangers efficiency endangers correctness, too.
    pub purpose: Purpose,
    /// What may happen, and when.
    pub what: String,
    /// What to change.
    pub change: String,
}

impl Finding {
    /// A finding against a purpose: what may happen, and what to change.
    #[must_use]
    pub fn new(purpose: Purpose, what: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            purpose,
            what: what.into(),
            change: change.into(),
        }
    }

    /// A finding of something that can make this store grant a lock twice.
    #[must_use]
    pub fn against_correctness(what: impl Into<String>, change: impl Into<String>) -> Self {
        Self::new(Purpose::Correctness, what, change)
    }
}
