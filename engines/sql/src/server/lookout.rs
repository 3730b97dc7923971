//! Looks out for a second server that takes writes. Of several hosts one does; where two do, each would grant the same lock.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error};

/// How long what was found is good for.
const FOUND: Duration = Duration::from_secs(5);

/// When all hosts of a store were looked at last, and which one was used then.
#[derive(Debug, Default)]
pub struct Lookout(Mutex<Option<(BootInstant, usize)>>);

impl Lookout {
    fn found(&self) -> MutexGuard<'_, Option<(BootInstant, usize)>> {
        // Each change is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether whoever connects now is to look at all hosts.
    pub fn is_due(&self) -> bool {
        let found = *self.found();
        found.is_none_or(|(at, _)| Clock::Boot.now().since(at) >= FOUND)
    }

    /// Whether this host is another one than when all were looked at last.
    pub fn is_another(&self, host: usize) -> bool {
        self.found().is_none_or(|(_, used)| used != host)
    }

    /// All were looked at, and this one is used.
    pub fn looked(&self, host: usize) {
        *self.found() = Some((Clock::Boot.now(), host));
    }
}

/// Refuses two servers that both take writes.
pub fn two_take_writes(store: &str, one: &str, other: &str, way_out: &str) -> Error {
    Error::config(
        store,
        format!(
            "{one} and {other} are two servers that both take writes: each would grant the same lock to another client. \
             {way_out}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_looked_at_first_and_after_a_switch_over() {
        let lookout = Lookout::default();
        assert!(lookout.is_due() && lookout.is_another(0));
        lookout.looked(0);
        assert!(!lookout.is_due() && !lookout.is_another(0));
        assert!(lookout.is_another(1));
    }
}
