use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fencelock_core::engine::EventSender;
use fencelock_core::support::{Contention, Mutex, inspect_only};
use fencelock_core::{BootInstant, ClaimId, LockName, Result};

use super::change::{Change, Write, Written};
use super::dialect::Dialect;
use super::entry::Entries;
use super::error::Failure;
use super::pool::Pool;
use super::stored::Snapshot;

/// The longest pause after another client was faster with a change. It separates clients that compete.
const STALE_PAUSE: Duration = Duration::from_millis(3);

pub(super) type Tried<T> = Result<T, Failure>;

pub(super) struct State<D: Dialect> {
    pub(super) pool: Pool<D>,
    pub(super) entries: Entries,
    /// Claims with requests of unknown outcome.
    pub(super) unsettled: Mutex<HashMap<ClaimId, Unsettled>>,
    pub(super) events: EventSender,
    /// The highest floor above which the token counter was lifted.
    pub(super) raised: AtomicU64,
    pub(super) contention: Contention,
}

/// Requests of unknown outcome.
#[derive(Debug)]
pub(super) struct Unsettled {
    /// The connections that carried them.
    pub(super) connections: Vec<String>,
    /// After this time, nothing that they may still do can be a hold.
    pub(super) until: BootInstant,
}

/// The answer of a call, and the waiters that may hold now.
#[derive(Debug)]
pub(super) struct Done<T> {
    pub(super) answer: T,
    pub(super) next: Vec<ClaimId>,
}

impl<T> Done<T> {
    /// An answer that concerns no waiter.
    pub(super) const fn alone(answer: T) -> Self {
        let next = Vec::new();
        Self { answer, next }
    }
}

impl<D: Dialect> State<D> {
    /// Wakes these waiters if they belong to this process. The dialect notifies other processes.
    pub(super) fn wake(&self, claims: &[ClaimId]) {
        for claim in claims {
            self.entries.wake(*claim);
        }
    }

    /// Notes that the claim no longer waits.
    pub(super) fn forget(&self, claim: ClaimId) {
        self.entries.remove(claim);
        self.pool.dialect.leave_queue(claim);
    }

    /// Refuses an action that writes, if the store was opened for inspection.
    pub(super) fn check_writes(&self, what: &'static str) -> Result<()> {
        let dialect = &self.pool.dialect;
        match dialect.inspect_only() {
            true => Err(inspect_only(dialect, what)),
            false => Ok(()),
        }
    }
}

/// An action, for errors.
pub(super) fn action(what: &str, name: &LockName) -> String {
    format!("{what} lock {name}")
}

/// Makes a change. Returns its outcome, and the waiters that may hold after it.
pub(super) async fn write<D: Dialect>(
    dialect: &D,
    session: &mut D::Session,
    name: &LockName,
    read: &Snapshot,
    change: Change<'_>,
) -> Tried<(Written, Vec<ClaimId>)> {
    let write = Write::new(name, read, change);
    let written = dialect.write(session, &write).await?;
    let next = match written {
        Written::Done(_) => write.next.into_iter().map(|(claim, _)| claim).collect(),
        Written::Stale => Vec::new(),
    };
    Ok((written, next))
}

pub(super) async fn pause() {
    tokio::time::sleep(STALE_PAUSE.mul_f32(fastrand::f32())).await;
}
