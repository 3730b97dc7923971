//! Which names were found taken of late.

use std::sync::atomic::{AtomicU8, Ordering};

use fencelock_core::LockName;

/// Which names were found taken of late: for those the way by script is the shorter one. A guess, shared by names of
/// the same hash; wrong guesses cost a command and nothing else.
#[derive(Debug)]
pub(crate) struct Contention(Box<[NameContention; NAMES]>);

const NAMES: usize = 1024;

/// How contended a name was lately.
#[derive(Debug)]
pub(crate) struct NameContention(AtomicU8);

impl NameContention {
    /// How many grants without anybody else it takes to cool down.
    const MOST: u8 = 8;

    pub(crate) fn is_contended(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn raise(&self) {
        self.0.store(Self::MOST, Ordering::Relaxed);
    }

    /// A little: a claim was granted the lock at once. Two who cool it at once may count as one: it is a guess all the
    /// same.
    pub(crate) fn lower(&self) {
        let left = self.0.load(Ordering::Relaxed);
        if left > 1 {
            self.0.store(left - 1, Ordering::Relaxed);
        }
    }

    /// The last bit goes with a release, so that the claim that was placed as on a hot name is released so, too.
    pub(crate) fn clear_last(&self) {
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
    pub(crate) fn of(&self, name: &LockName) -> &NameContention {
        &self.0[spread(name, NAMES)]
    }
}

/// A number below `count` for a name.
pub(crate) fn spread(name: &LockName, count: usize) -> usize {
    // FNV-1a, and the end of MurmurHash3: the former alone leaves names that differ in their last bytes together.
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
    fn names_that_are_alike_are_spread() {
        let of = |number: i32| spread(&LockName::new(&format!("order/{number}")).unwrap(), 4096);
        let used: HashSet<_> = (0..1000).map(of).collect();
        // 887 are to be expected if they are spread evenly.
        assert!(used.len() > 850, "{}", used.len());
    }
}
