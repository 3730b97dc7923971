//! Claims for which a request to place them had no reply. The request may still take effect.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::engine::Claim;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock};

/// For each claim: the generation of the first connection that carried such a request, and when even a late request is over. A
/// grant removes no entry: the claim may be withdrawn before the late request runs.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    claims: Mutex<HashMap<ClaimId, (u64, BootInstant)>>,
    count: AtomicUsize,
}

impl Unanswered {
    /// Notes that a request was sent over this connection, and no reply came.
    pub(crate) fn note(&self, claim: &Claim, generation: u64) {
        let now = Clock::Boot.now();
        // The core gives up one lease after its last attempt. Remembering twice that time is enough.
        let over = now + claim.ttl.saturating_add(claim.lock_delay).saturating_mul(2);
        let mut claims = self.claims.lock();
        claims.retain(|_, (_, over)| *over > now);
        let (first, _) = *claims.entry(claim.id).or_insert((generation, over));
        claims.insert(claim.id, (first.min(generation), over));
        self.count.store(claims.len(), Ordering::SeqCst);
    }

    pub(crate) fn find(&self, id: &ClaimId) -> Option<(u64, BootInstant)> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        self.claims.lock().get(id).copied()
    }

    pub(crate) fn forget(&self, id: &ClaimId) {
        let mut claims = self.claims.lock();
        claims.remove(id);
        self.count.store(claims.len(), Ordering::SeqCst);
    }
}
