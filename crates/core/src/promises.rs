//! What a store can and cannot promise, said before anyone relies on it.

use std::time::Duration;

/// The order in which waiters are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First come, first served, over all processes.
    Fifo,
    /// None.
    Unordered,
}

/// What a hold's life hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// A lease of its own, renewed by the client.
    Lease,
    /// A session that all holds of a client share.
    Session,
    /// A connection: the hold ends with it.
    Connection,
}

/// How a waiter hears that its turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The store tells it.
    Push,
    /// It asks again and again.
    Poll,
}

/// What the store remembers of a grant after it was killed or lost power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Every grant that a client has seen.
    Durable,
    /// Everything after a crash of the process; the last moments may be missing after a loss of power.
    Process,
    /// Nothing.
    Volatile,
}

/// A way in which this store could grant a lock twice, and what would mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What may happen, and when.
    pub what: String,
    /// What to change.
    pub change: String,
}

/// What an engine promises on the store as it was found at open. What is not promised is refused, never imitated.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Whether another process may go on with a claim that it knows by its id: it places the claim again and has its grant
    /// or its place in line, renews it, and withdraws it.
    pub portable: bool,
    /// What a hold's life hangs on.
    pub lease: LeaseKind,
    /// How waiters wake.
    pub wake: Wake,
    /// What is remembered.
    pub durability: Durability,
    /// What must be true of clocks for mutual exclusion, in a sentence.
    pub clock: &'static str,
    /// The shortest ttl that makes sense here.
    pub min_ttl: Duration,
    /// The longest `ttl + lock_delay`.
    pub max_ttl: Duration,
    /// What stands between this store and correctness; empty if nothing is known to.
    pub limits: Vec<Limit>,
}

/// What a lock is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A rare double run costs only money.
    #[default]
    Efficiency,
    /// A double run does damage.
    Correctness,
}

/// Something about a store that whoever runs it should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The purpose that it stands in the way of: what stands in the way of efficiency stands in that of correctness, too.
    pub purpose: Purpose,
    /// What may happen, and when.
    pub what: String,
    /// What to change.
    pub change: String,
}

impl Finding {
    /// What stands in the way of this purpose, and what to change.
    #[must_use]
    pub fn new(purpose: Purpose, what: impl Into<String>, change: impl Into<String>) -> Self {
        Self {
            purpose,
            what: what.into(),
            change: change.into(),
        }
    }
}

impl From<Limit> for Finding {
    fn from(limit: Limit) -> Self {
        let Limit { what, change } = limit;
        let purpose = Purpose::Correctness;
        Self {
            purpose,
            what,
            change,
        }
    }
}
