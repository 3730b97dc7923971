//! The claims of this engine: which of them wait, and which hold.
//!
//! Any user of the machine may send a wake-up. One for a claim without an entry is dropped, and for each claim that holds
//! at most one check is queued.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, LockName};
use fencelock_sql::poll::longer;
use tokio::sync::Notify;

/// After this time a waiter polls for the first time, because its wake-up may have been lost.
pub(crate) const FIRST_POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(crate) struct Entries(Mutex<HashMap<ClaimId, Entry>>);

#[derive(Debug)]
enum Entry {
    Waiting(Arc<Waiting>),
    Holding(Holding),
}

#[derive(Debug, Default)]
pub(crate) struct Waiting {
    wake_up: Notify,
    /// It is kept when the claim is placed again, since that alone is no reason to poll sooner.
    poll_interval: Mutex<Option<Duration>>,
}

#[derive(Debug)]
struct Holding {
    name: LockName,
    /// Whether a check of its row is queued and has not begun.
    check_queued: bool,
}

impl Waiting {
    /// Returns when it may be this claim's turn. A wake-up that came earlier counts.
    pub(crate) async fn woken(&self) {
        self.wake_up.notified().await;
    }

    /// How long to wait before the next poll. It grows with each call.
    pub(crate) fn next_poll_interval(&self) -> Duration {
        let mut interval = self.poll_interval.lock();
        let now = interval.unwrap_or(FIRST_POLL);
        *interval = Some(longer(now));
        now
    }

    /// The lock has changed: poll quickly again.
    pub(crate) fn reset_poll_interval(&self) {
        *self.poll_interval.lock() = None;
    }
}

impl Entries {
    /// Must be called in the transaction that gives the claim its place, so that no wake-up comes too early.
    pub(crate) fn set_waiting(&self, claim: ClaimId) {
        let mut entries = self.0.lock();
        if !matches!(entries.get(&claim), Some(Entry::Waiting(_))) {
            entries.insert(claim, Entry::Waiting(Arc::default()));
        }
    }

    pub(crate) fn set_holding(&self, claim: ClaimId, name: &LockName) {
        let mut entries = self.0.lock();
        if !matches!(entries.get(&claim), Some(Entry::Holding(_))) {
            let holding = Holding {
                name: name.clone(),
                check_queued: false,
            };
            entries.insert(claim, Entry::Holding(holding));
        }
    }

    pub(crate) fn remove(&self, claim: ClaimId) {
        self.0.lock().remove(&claim);
    }

    pub(crate) fn remove_waiting(&self, claim: ClaimId) {
        let mut entries = self.0.lock();
        if matches!(entries.get(&claim), Some(Entry::Waiting(_))) {
            entries.remove(&claim);
        }
    }

    pub(crate) fn remove_holding(&self, claim: ClaimId) {
        let mut entries = self.0.lock();
        if matches!(entries.get(&claim), Some(Entry::Holding(_))) {
            entries.remove(&claim);
        }
    }

    pub(crate) fn waiting(&self, claim: ClaimId) -> Option<Arc<Waiting>> {
        match self.0.lock().get(&claim) {
            Some(Entry::Waiting(waiting)) => Some(Arc::clone(waiting)),
            _ => None,
        }
    }

    /// Wakes a claim that waits. `false` if it does not wait here.
    pub(crate) fn wake(&self, claim: ClaimId) -> bool {
        match self.0.lock().get(&claim) {
            Some(Entry::Waiting(waiting)) => {
                waiting.wake_up.notify_one();
                true
            }
            _ => false,
        }
    }

    /// Notes that the row of a holder must be checked. Returns its lock; `None` if a check is queued already, or if the claim
    /// does not hold here.
    pub(crate) fn queue_check(&self, claim: ClaimId) -> Option<LockName> {
        match self.0.lock().get_mut(&claim) {
            Some(Entry::Holding(holding)) if !holding.check_queued => {
                holding.check_queued = true;
                Some(holding.name.clone())
            }
            _ => None,
        }
    }

    /// Notes that a check begins. A later wake-up may be about a change that this check does not see.
    pub(crate) fn check_begins(&self, claim: ClaimId) {
        if let Some(Entry::Holding(holding)) = self.0.lock().get_mut(&claim) {
            holding.check_queued = false;
        }
    }
}
