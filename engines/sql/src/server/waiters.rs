//! The claims of this process that wait: woken, granted, or asking by themselves with ever longer naps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place};
use fencelock_core::{BootInstant, ClaimId, Clock, Token, Tokens};
use tokio::sync::Notify;

use crate::naps::longer;

/// A waiter asks after this time, then after ever longer ones.
pub(super) const FIRST_NAP: Duration = Duration::from_millis(5);
/// The longest time between two questions of a waiter that has just seen a change.
const MIDDLE_NAP: Duration = Duration::from_millis(100);

/// A grant that whoever released before made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Whose it is.
    pub claim: ClaimId,
    /// What was drawn for it.
    pub tokens: Tokens,
    /// For how long the database keeps it without a sign of life.
    pub reach: Duration,
}

/// What the database said when it was last asked about a claim's place in line.
#[derive(Clone, Copy, Debug)]
struct Known {
    asked_at: BootInstant,
    /// The last token drawn: a grant with a higher one came after that.
    drawn: Token,
    /// The version of the lock.
    version: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            asked_at: BootInstant::from_nanos(0),
            drawn: Token(0),
            version: 0,
        }
    }
}

/// One claim that waits.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    bell: Notify,
    pushed: Mutex<Option<Pushed>>,
    place: Mutex<Known>,
    nap: Mutex<Option<Duration>>,
}

impl Waiter {
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Returns when it may be this claim's turn. A ring that comes while nobody listens is kept.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }

    /// The database was asked at `asked_at`, and says that the claim stands in line.
    pub(super) fn stands(&self, asked_at: BootInstant, drawn: Token, version: u64) {
        *locked(&self.place) = Known {
            asked_at,
            drawn,
            version,
        };
    }

    /// The version of the lock when the place in line was asked about last.
    pub(super) fn version(&self) -> u64 {
        locked(&self.place).version
    }

    /// What may be believed of the grant that came in, if one did and that is enough. It was made after the place in line
    /// was asked about, or its token would be lower: so the lease counts from then. No clock is compared with another.
    pub(super) fn granted(&self, claim: &Claim) -> Option<Grant> {
        let pushed = locked(&self.pushed).take()?;
        let place = *locked(&self.place);
        let news = pushed.tokens.first > place.drawn;
        let lease = pushed.reach.min(claim.ttl);
        let soon = Clock::Boot.now().since(place.asked_at) < lease.mul_f32(0.75);
        // The lock-delay counts only after a sign of life, so placing again gives one first.
        let grant = Grant {
            tokens: pushed.tokens,
            counted_from: place.asked_at,
            lease,
            recorded: true,
        };
        (news && soon && claim.lock_delay.is_zero()).then_some(grant)
    }

    /// How long to sleep now; it grows with each question.
    pub(super) fn next_nap(&self) -> Duration {
        let mut nap = locked(&self.nap);
        let now = nap.unwrap_or(FIRST_NAP);
        *nap = Some(longer(now));
        now
    }

    /// Something goes on here: ask sooner again, the sooner the fewer stand before.
    pub(super) fn stir(&self, place: &Place) {
        let ahead = u32::try_from(place.ahead.unwrap_or(0)).unwrap_or(u32::MAX);
        let nap = FIRST_NAP.saturating_mul(ahead.max(1)).min(MIDDLE_NAP);
        *locked(&self.nap) = Some(nap);
    }
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<HashMap<ClaimId, Arc<Waiter>>>);

impl Waiters {
    /// Before anything is sent that may put the claim in line: the ring may come before the answer.
    pub(super) fn register(&self, claim: ClaimId) -> Arc<Waiter> {
        Arc::clone(locked(&self.0).entry(claim).or_default())
    }

    pub(super) fn of(&self, claim: ClaimId) -> Option<Arc<Waiter>> {
        locked(&self.0).get(&claim).cloned()
    }

    pub(super) fn forget(&self, claim: ClaimId) {
        locked(&self.0).remove(&claim);
    }

    pub(super) fn ring(&self, claim: ClaimId) {
        if let Some(waiter) = self.of(claim) {
            waiter.ring();
        }
    }

    /// A grant for a claim that waits no more is given back with the claim.
    pub(super) fn push(&self, pushed: Pushed) {
        if let Some(waiter) = self.of(pushed.claim) {
            *locked(&waiter.pushed) = Some(pushed);
            waiter.ring();
        }
    }

    /// Something may have been missed: all look.
    pub(super) fn ring_all(&self) {
        for waiter in locked(&self.0).values() {
            waiter.ring();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is a single step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
