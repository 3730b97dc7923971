//! What happened in a run: which task believed that it held which lock, and when; the writes to the resource; the faults.
//! All instants are nanoseconds of the boot clock of one machine.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the JSON form.
pub const FORMAT: u32 = 1;

/// A whole run. `--json` prints its JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// [`FORMAT`].
    pub format: u32,
    /// The engine.
    pub engine: String,
    /// The store, without its password.
    pub store: String,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The number of worker processes.
    pub workers: u32,
    /// The number of tasks in each process.
    pub tasks: u32,
    /// The locks.
    pub names: Vec<String>,
    /// The lease, in nanoseconds.
    pub ttl: u64,
    /// When it began.
    pub began: u64,
    /// When the workers were stopped.
    pub ended: u64,
    /// What the store promises.
    pub promised: Promised,
    /// How long after a fault its consequences may last, in nanoseconds.
    pub aftermath: u64,
    /// The time after the last fault within which every lock must be granted again, in nanoseconds.
    pub recovery: u64,
    /// Every request of every task.
    pub attempts: Vec<Attempt>,
    /// Every claim as the engine saw it.
    pub claims: Vec<Claimed>,
    /// The writes to the resource, in the order of their arrival.
    pub writes: Vec<Write>,
    /// The faults.
    pub faults: Vec<Fault>,
    /// What happened to the store without an injected fault, as far as it is known and affects the promises.
    #[serde(default)]
    pub befell: Vec<Fault>,
    /// Effects of late requests that must not happen.
    #[serde(default)]
    pub late: Vec<Late>,
    /// What was left on the server at the end.
    pub left: Vec<String>,
    /// What made the run incomplete, such as a worker that did not start.
    pub troubles: Vec<String>,
}

/// The promises of the store that a history can be checked against.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Promised {
    /// First come, first served.
    pub fifo: bool,
    /// Shared mode.
    pub shared: bool,
    /// What the store assumes of clocks, in words.
    pub clock: String,
    /// The findings of the engine about this store, in words.
    pub limits: Vec<String>,
}

/// One request of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The worker.
    pub worker: u32,
    /// The number of the worker's process, which may have been killed and started again.
    pub life: u32,
    /// The task in it.
    pub task: u32,
    /// The index in [`History::names`].
    pub name: u32,
    /// Whether it is in shared mode.
    pub shared: bool,
    /// How the task requested the lock, and how it meant to release it.
    pub how: How,
    /// When it sent the request.
    pub asked: u64,
    /// When it learned that it held.
    pub granted: Option<u64>,
    /// The token of the grant.
    pub token: Option<u64>,
    /// The claim: 32 hex digits.
    pub claim: Option<String>,
    /// The last known end of its validity.
    pub valid: Option<u64>,
    /// When it stopped believing that it held: by its release, the report of a loss, its kill, or the end of its validity.
    pub until: Option<u64>,
    /// When the loss was reported to it.
    pub told: Option<u64>,
    /// How it ended.
    pub end: End,
    /// When it ended.
    pub over: Option<u64>,
}

/// How a task requests a lock, and how it releases it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Queues, and releases.
    #[default]
    Wait,
    /// Does not wait.
    Try,
    /// Tries again and again without a place in the queue.
    Unfair,
    /// Drops the request, unless it is granted sooner.
    DropRequest,
    /// Drops the guard instead of a release.
    DropGuard,
    /// Does not renew, holds past the lease, and then writes without a check.
    Overstay,
}

/// How an attempt ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// It has not ended.
    #[default]
    Open,
    /// Released while held.
    Released,
    /// Released when the lease was over.
    Expired,
    /// The lock was no longer held by this claim.
    NotOwner,
    /// The store did not confirm the release.
    Unconfirmed,
    /// The guard was dropped.
    Dropped,
    /// The process was killed.
    Killed,
    /// Another claim held the lock.
    Busy,
    /// The wait timed out.
    TimedOut,
    /// The request was dropped.
    Gone,
    /// An error.
    Failed(String),
}

impl Attempt {
    /// When the task believed that it held; `None` if it never did.
    #[must_use]
    pub fn belief(&self) -> Option<(u64, u64)> {
        let (from, to) = (self.granted?, self.until?);
        (from < to).then_some((from, to))
    }

    /// `worker.task`, for messages.
    #[must_use]
    pub fn who(&self) -> String {
        format!("w{}.{}", self.worker, self.task)
    }
}

/// A claim between the core and the engine of its process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// 32 hex digits.
    pub id: String,
    /// The worker.
    pub worker: u32,
    /// The index in [`History::names`].
    pub name: u32,
    /// Whether it is in shared mode.
    pub shared: bool,
    /// When it was first placed, before anything was sent.
    pub placed: u64,
    /// When it was first known to be queued at the store.
    pub stood: Option<u64>,
    /// When it was known to hold, and its first token.
    pub held: Option<(u64, u64)>,
}

/// A write to the resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// The index in [`History::attempts`].
    pub attempt: usize,
    /// The index in [`History::names`].
    pub name: u32,
    /// Its token.
    pub token: u64,
    /// Its claim.
    pub claim: String,
    /// Whether it came from a shared holder.
    pub shared: bool,
    /// When it arrived.
    pub at: u64,
    /// Whether the fenced register accepted it.
    pub accepted: bool,
    /// Whether the unfenced register, which accepts everything, lost an update by it.
    pub lost_update: bool,
}

/// A fault, from its injection to its healing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// The name of a [`FaultKind`](crate::FaultKind).
    pub what: String,
    /// The target: `worker 2`, `node 1`.
    pub whom: String,
    /// Its beginning.
    pub from: u64,
    /// Its end.
    pub to: u64,
    /// The rules that this engine does not promise under the fault.
    pub excuses: Vec<Rule>,
    /// Why not.
    pub why: String,
}

/// An effect of a late request that must not happen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Late {
    /// The lock.
    pub name: String,
    /// When it was seen.
    pub at: u64,
    /// A description.
    pub what: String,
}

/// The rules that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Two tasks never believe that they hold at the same time, unless both are shared.
    Exclusion,
    /// A holder whose lease ends stops believing that it holds before the next grant.
    LossFirst,
    /// No token twice.
    TokenOnce,
    /// A grant that was requested after another grant was known has a higher token.
    TokenOrder,
    /// The fence accepts no write that is older than an accepted one.
    Fence,
    /// The fence refuses no holder.
    FenceOpen,
    /// First come, first served.
    // The name of the rule in older histories.
    #[serde(alias = "line")]
    Queue,
    /// A task that waits long enough without a fault is granted the lock.
    Starvation,
    /// After the last fault every lock is granted again.
    Progress,
    /// A late request takes a lock for a claim window at most, shortens no lease, and renews no other grant.
    Late,
    /// Nothing is left on the server.
    Leak,
    /// No holder loses its lock without a fault.
    Kept,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Exclusion,
        Self::LossFirst,
        Self::TokenOnce,
        Self::TokenOrder,
        Self::Fence,
        Self::FenceOpen,
        Self::Queue,
        Self::Starvation,
        Self::Progress,
        Self::Late,
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
            Self::Queue => "queue",
            Self::Starvation => "starvation",
            Self::Progress => "progress",
            Self::Late => "late",
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
