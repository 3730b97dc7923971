//! What happened in a run: who believed to hold what and when, what the resource was asked to write, which faults struck.
//! All instants are nanoseconds of the boot clock of one machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the JSON form.
pub const FORMAT: u32 = 1;

/// One run, whole. Its JSON form is what `--json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// [`FORMAT`].
    pub format: u32,
    /// The engine.
    pub engine: String,
    /// The store, without its password.
    pub store: String,
    /// What chance was seeded with.
    pub seed: u64,
    /// How many worker processes.
    pub workers: u32,
    /// How many tasks in each.
    pub tasks: u32,
    /// The locks.
    pub names: Vec<String>,
    /// The lease, in nanoseconds.
    pub ttl: u64,
    /// When it began.
    pub began: u64,
    /// When the workers were told to stop.
    pub ended: u64,
    /// What the store promises.
    pub promised: Promised,
    /// For how long after a fault its consequences may still be seen, in nanoseconds.
    pub aftermath: u64,
    /// Within which time after the last fault every lock must be granted again, in nanoseconds.
    pub recovery: u64,
    /// Every wish of every task.
    pub attempts: Vec<Attempt>,
    /// Every claim as the engine saw it.
    pub claims: Vec<Claimed>,
    /// What came to the resource, in the order in which it came.
    pub writes: Vec<Write>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// What befell the store by itself, as far as it is known and matters to what it promises.
    #[serde(default)]
    pub befell: Vec<Fault>,
    /// What was left on the server at the end.
    pub left: Vec<String>,
    /// What kept the run itself from being complete, such as a worker that did not start.
    pub troubles: Vec<String>,
}

/// What the store promises, as far as a history can be held against it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Promised {
    /// First come, first served.
    pub fifo: bool,
    /// Shared mode.
    pub shared: bool,
    /// What must be true of clocks, in words.
    pub clock: String,
    /// What stands between this store and correctness, in words.
    pub limits: Vec<String>,
}

/// One wish of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The worker.
    pub worker: u32,
    /// Which process of that worker: it may have been killed and started again.
    pub life: u32,
    /// The task in it.
    pub task: u32,
    /// Which of [`History::names`].
    pub name: u32,
    /// Whether others may hold at the same time.
    pub shared: bool,
    /// How the task asked and how it meant to leave.
    pub how: How,
    /// When it asked.
    pub asked: u64,
    /// When it knew that it held.
    pub granted: Option<u64>,
    /// With which token.
    pub token: Option<u64>,
    /// For which claim: 32 hex digits.
    pub claim: Option<String>,
    /// The end of its validity, as it was known last.
    pub valid: Option<u64>,
    /// When its belief ended: it let go, was told of the loss, was killed, or its validity ended.
    pub until: Option<u64>,
    /// When it was told of the loss.
    pub told: Option<u64>,
    /// How it ended.
    pub end: End,
    /// When it ended.
    pub over: Option<u64>,
}

/// How a task asks for a lock, and leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Stands in line, releases.
    #[default]
    Wait,
    /// Does not wait.
    Try,
    /// Asks again and again, without a place in line.
    Unfair,
    /// Drops the wish before it came true, if it is not granted sooner.
    DropWish,
    /// Drops the guard.
    DropGuard,
    /// Does not renew, holds past the lease, and writes then without asking whether it may.
    Overstay,
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It has not.
    #[default]
    Open,
    /// Released while held.
    Released,
    /// Released when the lease was over.
    Expired,
    /// The lock was somebody else's, or nobody's.
    NotOwner,
    /// The store did not confirm the release.
    Unconfirmed,
    /// The guard was dropped.
    Dropped,
    /// The process was killed.
    Killed,
    /// Somebody else held.
    Busy,
    /// The time to wait was over.
    TimedOut,
    /// The wish was dropped.
    Gone,
    /// An error.
    Failed(String),
}

impl Attempt {
    /// When the task believed to hold; `None` if it never did.
    #[must_use]
    pub fn belief(&self) -> Option<(u64, u64)> {
        let (from, to) = (self.granted?, self.until?);
        (from < to).then_some((from, to))
    }

    /// `worker.task`, for people.
    #[must_use]
    pub fn who(&self) -> String {
        format!("w{}.{}", self.worker, self.task)
    }
}

/// A claim, as it passed between the core and the engine in its process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// 32 hex digits.
    pub id: String,
    /// The worker.
    pub worker: u32,
    /// Which of [`History::names`].
    pub name: u32,
    /// Whether it wants to hold beside others.
    pub shared: bool,
    /// When it was first placed: before anything was sent.
    pub placed: u64,
    /// When the store was first known to have it in line.
    pub stood: Option<u64>,
    /// When it was known to hold, and its first token.
    pub held: Option<(u64, u64)>,
}

/// A write that came to the resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// Which of [`History::attempts`].
    pub attempt: usize,
    /// Which of [`History::names`].
    pub name: u32,
    /// Its token.
    pub token: u64,
    /// Its claim.
    pub claim: String,
    /// Whether it is of a shared holder.
    pub shared: bool,
    /// When it came.
    pub at: u64,
    /// Whether the fenced register took it.
    pub accepted: bool,
    /// Whether the unfenced register, which takes everything, thereby lost an update.
    pub lost_update: bool,
}

/// A fault, from its beginning to its healing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What: a [`Harm`](crate::Harm)'s name.
    pub what: String,
    /// To whom: `worker 2`, `node 1`.
    pub whom: String,
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// What this engine does not promise under it.
    pub excuses: Vec<Rule>,
    /// Why not.
    pub why: String,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Nobody believes to hold beside another, unless both share.
    Exclusion,
    /// A holder whose lease ends stops believing before another is granted the lock.
    LossFirst,
    /// No token twice.
    TokenOnce,
    /// A grant that was asked for after another one was known has a higher token.
    TokenOrder,
    /// The fence takes nothing older than what it has taken.
    Fence,
    /// The fence refuses nobody who holds.
    FenceOpen,
    /// First come, first served.
    Line,
    /// Whoever waits long enough in peace is served.
    Starvation,
    /// After the last fault every lock is granted again.
    Progress,
    /// Nothing is left.
    Leak,
    /// Nobody's lock is taken away.
    Kept,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Exclusion,
        Self::LossFirst,
        Self::TokenOnce,
        Self::TokenOrder,
        Self::Fence,
        Self::FenceOpen,
        Self::Line,
        Self::Starvation,
        Self::Progress,
        Self::Leak,
        Self::Kept,
    ];

    /// Its name, as in the JSON form.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusion => "exclusion",
            Self::LossFirst => "loss-first",
            Self::TokenOnce => "token-once",
            Self::TokenOrder => "token-order",
            Self::Fence => "fence",
            Self::FenceOpen => "fence-open",
            Self::Line => "line",
            Self::Starvation => "starvation",
            Self::Progress => "progress",
            Self::Leak => "leak",
            Self::Kept => "kept",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
