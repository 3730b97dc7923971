//! The client's state of one claim that waits: woken, granted, or polling with growing intervals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, Token};
use tokio::sync::Notify;

use super::message::PushedGrant;
use crate::poll::longer;

/// The first poll interval of a waiter.
pub(super) const FIRST_POLL: Duration = Duration::from_millis(5);
/// The longest poll interval of a waiter that has just seen a change.
const CONTENDED_POLL: Duration = Duration::from_millis(100);

/// What the database last answered about a claim's place in the queue.
#[derive(Clone, Copy, Debug)]
struct Known {
    asked_at: BootInstant,
    /// The last token drawn. A grant with a higher token came later.
    drawn: Token,
    /// The gate's version.
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

#[derive(Debug, Default)]
pub(super) struct Entry {
    wake_up: Notify,
    pushed: Mutex<Option<PushedGrant>>,
    known: Mutex<Known>,
    interval: Mutex<Option<Duration>>,
}

impl Entry {
    pub(super) fn wake(&self) {
        self.wake_up.notify_one();
    }

    /// Returns when it may be this claim's turn. A wake-up that comes before the call is kept.
    pub(super) async fn woken(&self) {
        self.wake_up.notified().await;
    }

    /// Notes that the database answered, to a request sent at `asked_at`, that the claim is in the queue.
    pub(super) fn queued(&self, asked_at: BootInstant, drawn: Token, version: u64) {
        *self.known.lock() = Known {
            asked_at,
            drawn,
            version,
        };
    }

    /// The gate's version in the last answer.
    pub(super) fn version(&self) -> u64 {
        self.known.lock().version
    }

    /// The grant that was pushed to this claim, if the client may use it. A pushed grant has no request of its own from which
    /// its lease could count. But a token above the last known one was drawn after the claim was placed, so the lease counts
    /// from then. Clocks are not compared.
    pub(super) fn granted(&self, claim: &Claim) -> Option<Grant> {
        let pushed = self.pushed.lock().take()?;
        let known = *self.known.lock();
        let is_new = pushed.asked_at.is_some() || pushed.tokens.first > known.drawn;
        let counted_from = pushed.asked_at.unwrap_or(known.asked_at);
        let lease = pushed.window.min(claim.ttl);
        let in_time = Clock::Boot.now().since(counted_from) < lease.mul_f32(0.75);
        let grant = Grant::new(pushed.tokens, counted_from, lease);
        // A lock-delay counts only after a sign of life, so such a claim is placed again first.
        (is_new && in_time && claim.lock_delay.is_zero()).then_some(grant)
    }

    /// The time until the next poll. It grows each time.
    pub(super) fn next_interval(&self) -> Duration {
        let mut interval = self.interval.lock();
        let now = interval.unwrap_or(FIRST_POLL);
        *interval = Some(longer(now));
        now
    }

    /// Makes the claim poll faster again, because the lock has changed: the fewer waiters are ahead, the faster.
    pub(super) fn reset_interval(&self, place: &Place) {
        let ahead = u32::try_from(place.ahead.unwrap_or(0)).unwrap_or(u32::MAX);
        let interval = FIRST_POLL.saturating_mul(ahead.max(1));
        *self.interval.lock() = Some(interval.min(CONTENDED_POLL));
    }
}

/// The entries of all claims of this process that wait.
#[derive(Debug, Default)]
pub(super) struct Entries(Mutex<HashMap<ClaimId, Arc<Entry>>>);

impl Entries {
    /// Called before a request is sent that may put the claim in the queue, since the wake-up may come before the answer.
    pub(super) fn register(&self, claim: ClaimId) -> Arc<Entry> {
        Arc::clone(self.0.lock().entry(claim).or_default())
    }

    pub(super) fn get(&self, claim: ClaimId) -> Option<Arc<Entry>> {
        self.0.lock().get(&claim).cloned()
    }

    pub(super) fn remove(&self, claim: ClaimId) {
        self.0.lock().remove(&claim);
    }

    pub(super) fn wake(&self, claim: ClaimId) {
        if let Some(entry) = self.get(claim) {
            entry.wake();
        }
    }

    /// A grant for a claim that no longer waits is withdrawn with the claim.
    pub(super) fn push(&self, pushed: PushedGrant) {
        if let Some(entry) = self.get(pushed.claim) {
            *entry.pushed.lock() = Some(pushed);
            entry.wake();
        }
    }

    /// Wakes all claims, because messages may have been missed.
    pub(super) fn wake_all(&self) {
        for entry in self.0.lock().values() {
            entry.wake();
        }
    }
}
