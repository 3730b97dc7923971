use std::ops::Add;
use std::time::Duration;

use fencelock_core::{ClaimId, Token};

use crate::lease::Rows;

/// An instant on the database's clock: microseconds since the beginning of 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DbInstant(pub u64);

impl DbInstant {
    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for DbInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

/// A duration as it is stored. It has room for a hundred years.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A lock as it was read.
#[derive(Debug)]
pub struct Snapshot {
    /// The database's time of reading.
    pub now: DbInstant,
    /// The gate's version.
    pub version: u64,
    /// The last token drawn, of any lock; 0 on databases where a release grants nothing.
    pub drawn: Token,
    /// The holders and the queue.
    pub rows: Rows<DbInstant>,
}

/// A new place at the end of the queue.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    /// The gate's new version.
    pub version: u64,
    /// As in [`Snapshot`].
    pub drawn: Token,
    /// How many waiters are ahead.
    pub ahead: u64,
    /// How long the first holder to expire has left.
    pub left: Option<Duration>,
}

/// The version of a gate that [`Dialect::acquire_free`](super::Dialect::acquire_free) inserts. It follows from the claim, so that
/// any process can release the claim in one request. Gates of two claims begin with different versions. A claim that is placed
/// again after its gate was deleted has the same version again. So a change checks the holders that it is about, too.
pub fn first_version(claim: ClaimId) -> u64 {
    let (high, low) = claim.as_bytes().split_at(8);
    let number = |bytes: &[u8]| {
        let eight = bytes.first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(eight)
    };
    // Two bits stay free: one for incrementing, and one for databases whose integers are signed.
    (number(high) ^ number(low).rotate_left(16)) >> 2
}
