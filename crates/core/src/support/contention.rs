//! Which locks were contended recently.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, Ordering};

use foldhash::fast::FixedState;

use crate::types::LockName;

const NAMES: usize = 1024;

/// Which locks were contended recently. For those, requests that expect other claims are faster than the fast path of an
/// uncontended lock. Names with the same hash share a counter; a wrong guess costs one request.
#[derive(Debug)]
pub struct Contention(Box<[NameContention; NAMES]>);

/// How contended a lock was recently.
#[derive(Debug)]
pub struct NameContention(AtomicU8);

impl NameContention {
    /// How many uncontended grants in a row it takes until the lock counts as uncontended.
    const MOST: u8 = 8;

    /// Whether another claim wanted the lock recently.
    pub fn is_contended(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Notes that another claim wants the lock.
    pub fn raise(&self) {
        self.0.store(Self::MOST, Ordering::Relaxed);
    }

    /// Notes an immediate grant. Two concurrent calls may count as one.
    pub fn lower(&self) {
        let left = self.0.load(Ordering::Relaxed);
        if left > 1 {
            self.0.store(left - 1, Ordering::Relaxed);
        }
    }

    /// Clears the last step of contention. This belongs to a release, so that a claim that was placed as on a contended lock is
    /// also released in that way.
    pub fn clear_last(&self) {
        if self.0.load(Ordering::Relaxed) == 1 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for Contention {
    fn default() -> Self {
        Self(Box::new(
            [const { NameContention(AtomicU8::new(0)) }; NAMES],
        ))
    }
}

impl Contention {
    /// How contended this lock was.
    pub fn of(&self, name: &LockName) -> &NameContention {
        let hash = FixedState::default().hash_one(name);
        &self.0[hash as usize % NAMES]
    }
}

/// A number below `count` for a name. It never changes: clients must agree on it.
pub fn spread(name: &LockName, count: usize) -> usize {
    // FNV-1a with the finalizer of MurmurHash3: FNV-1a alone does not spread names that differ in their last bytes only.
    let fnv = name
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let factors = [0xff51_afd7_ed55_8ccd_u64, 0xc4ce_b9fe_1a85_ec53];
    let hash = factors.into_iter().fold(fnv, |hash, factor| {
        (hash ^ (hash >> 33)).wrapping_mul(factor)
    });
    (hash >> 33) as usize % count
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn similar_names_are_spread() {
        let of = |number: i32| spread(&LockName::new(&format!("order/{number}")).unwrap(), 4096);
        let used: HashSet<_> = (0..1000).map(of).collect();
        // An even spread has 887.
        assert!(used.len() > 850, "{}", used.len());
    }
}
