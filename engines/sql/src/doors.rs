//! The waiters of this engine, to be woken when a ring comes in for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::ClaimId;
use tokio::sync::Notify;

/// A door for each claim that waits here. It is put up in the transaction that gave the claim its place, so no ring
/// comes too early; one that comes while nobody listens is kept.
#[derive(Debug, Default)]
pub(crate) struct Doors(Mutex<HashMap<ClaimId, Arc<Notify>>>);

impl Doors {
    pub(crate) fn put_up(&self, claim: ClaimId) {
        self.doors().entry(claim).or_default();
    }

    pub(crate) fn take_down(&self, claim: ClaimId) {
        self.doors().remove(&claim);
    }

    pub(crate) fn of(&self, claim: ClaimId) -> Option<Arc<Notify>> {
        self.doors().get(&claim).cloned()
    }

    pub(crate) fn ring(&self, claim: ClaimId) {
        if let Some(door) = self.doors().get(&claim) {
            door.notify_one();
        }
    }

    fn doors(&self) -> MutexGuard<'_, HashMap<ClaimId, Arc<Notify>>> {
        // Each change is a single call to the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
