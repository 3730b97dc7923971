//! The waiters of this engine, to be woken when a ring comes in for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::ClaimId;
use fencelock_sql::naps::longer;
use tokio::sync::Notify;

/// A waiter looks after this time, then after ever longer ones: its ring may have been lost.
pub(crate) const FIRST_NAP: Duration = Duration::from_millis(10);

/// Where one claim that waits hears of its turn.
#[derive(Debug, Default)]
pub(crate) struct Door {
    bell: Notify,
    /// Kept from one place in line to the next: placing again at the time to recheck is no news.
    nap: Mutex<Option<Duration>>,
}

impl Door {
    /// Returns when it may be this claim's turn. A ring that comes while nobody listens is kept.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// How long to sleep now; it grows with each look.
    pub(crate) fn next_nap(&self) -> Duration {
        let mut nap = locked(&self.nap);
        let now = nap.unwrap_or(FIRST_NAP);
        *nap = Some(longer(now));
        now
    }

    /// Something goes on here: look sooner again.
    pub(crate) fn stir(&self) {
        *locked(&self.nap) = None;
    }
}

/// A door for each claim that waits here. It is put up in the transaction that gave the claim its place, so no ring
/// comes too early; one that comes while nobody listens is kept.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<HashMap<ClaimId, Arc<Door>>>);

impl Doors {
    pub(crate) fn put_up(&self, claim: ClaimId) {
        locked(&self.0).entry(claim).or_default();
    }

    pub(crate) fn take_down(&self, claim: ClaimId) {
        locked(&self.0).remove(&claim);
    }

    pub(crate) fn of(&self, claim: ClaimId) -> Option<Arc<Door>> {
        locked(&self.0).get(&claim).cloned()
    }

    /// Whether the claim waits here. Rings that come before it looks are one.
    pub(crate) fn ring(&self, claim: ClaimId) -> bool {
        let doors = locked(&self.0);
        let door = doors.get(&claim);
        if let Some(door) = door {
            door.bell.notify_one();
        }
        door.is_some()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
