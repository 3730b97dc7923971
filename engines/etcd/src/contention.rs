//! Which locks are contended: they were found taken recently.

use std::collections::HashMap;

use fencelock_core::LockName;
use fencelock_core::support::Mutex;

/// How many uncontended grants in a row it takes until a lock no longer counts as contended.
const GRANTS: u8 = 8;

/// How many contended locks are remembered. A lock that is forgotten costs one request.
const MAX_LOCKS: usize = 4096;

/// The locks that are contended, each with the uncontended grants that are still missing.
#[derive(Debug, Default)]
pub(crate) struct Contention(Mutex<HashMap<LockName, u8>>);

impl Contention {
    /// Whether the lock was found taken recently.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.0.lock().contains_key(name)
    }

    /// The lock was found taken.
    pub(crate) fn found_taken(&self, name: &LockName) {
        let mut locks = self.0.lock();
        if locks.len() >= MAX_LOCKS && !locks.contains_key(name) {
            locks.clear();
        }
        locks.insert(name.clone(), GRANTS);
    }

    /// The lock was granted at once.
    pub(crate) fn found_free(&self, name: &LockName) {
        let mut locks = self.0.lock();
        if let Some(left) = locks.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                locks.remove(name);
            }
        }
    }
}
