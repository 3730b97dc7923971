//! The five phases of a change: from the old map of a set to its new map, while programs run.

use std::fmt;

/// The state of a change of the map.
///
/// For a name whose store differs between the two maps:
///
/// | phase | a new grant takes | and has the token of | a hold needs |
/// | --- | --- | --- | --- |
/// | `Old` | old | old | old |
/// | `BothOld` | old, then new | old | old |
/// | `Hush` | is not given | | both |
/// | `BothNew` | old, then new | new | new |
/// | `New` | new | new | new |
///
/// ```
/// use fencelock_composite::Phase;
///
/// assert_eq!(Phase::from_number(2), Some(Phase::Hush));
/// assert_eq!(Phase::Hush.to_string(), "2 (hush: nothing is granted)");
/// assert!(Phase::Old.is_an_end() && Phase::Old < Phase::New);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Phase {
    /// The old store alone.
    Old,
    /// Both; the old store counts.
    BothOld,
    /// Nothing is granted. Holds go on, and waiters keep their places.
    Hush,
    /// Both; the new store counts.
    BothNew,
    /// The new store alone.
    New,
}

impl Phase {
    const ALL: [Self; 5] = [
        Self::Old,
        Self::BothOld,
        Self::Hush,
        Self::BothNew,
        Self::New,
    ];

    /// The number in the record, from 0 to 4.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Old => 0,
            Self::BothOld => 1,
            Self::Hush => 2,
            Self::BothNew => 3,
            Self::New => 4,
        }
    }

    /// The phase of a [`number`](Self::number).
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.number() == number)
    }

    /// The phase in words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Old => "the old store alone",
            Self::BothOld => "both stores, the old one counts",
            Self::Hush => "hush: nothing is granted",
            Self::BothNew => "both stores, the new one counts",
            Self::New => "the new store alone",
        }
    }

    /// Whether one store alone is in charge of a name that moves.
    #[must_use]
    pub const fn is_an_end(self) -> bool {
        matches!(self, Self::Old | Self::New)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.number(), self.as_str())
    }
}
