//! The claims that hold through this engine. What is said of others through the doorbell, to which any user of the machine
//! may write, is passed over; and of each of these there is one look at a time that has not begun.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fencelock_core::{ClaimId, LockName};

#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<HashMap<ClaimId, Known>>);

#[derive(Debug)]
struct Known {
    name: LockName,
    /// A look is queued that has not begun.
    to_be_looked_at: bool,
}

impl Holds {
    pub(super) fn put_up(&self, claim: ClaimId, name: &LockName) {
        self.locked().entry(claim).or_insert_with(|| Known {
            name: name.clone(),
            to_be_looked_at: false,
        });
    }

    pub(super) fn take_down(&self, claim: ClaimId) {
        self.locked().remove(&claim);
    }

    /// The lock to look at because of a ring for this claim; `None` if that is in hand, or the claim is not of here.
    pub(super) fn to_look_at(&self, claim: ClaimId) -> Option<LockName> {
        let mut holds = self.locked();
        let known = holds.get_mut(&claim)?;
        if std::mem::replace(&mut known.to_be_looked_at, true) {
            return None;
        }
        Some(known.name.clone())
    }

    /// A look begins: a ring from now on may be about what it does not see.
    pub(super) fn looking_at(&self, claim: ClaimId) {
        if let Some(known) = self.locked().get_mut(&claim) {
            known.to_be_looked_at = false;
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        // Each change is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
