//! The bounds of a search, and the rules of the phases.

use super::state::{GRANT, Mutant, NEW, OLD, SECOND};

/// A model of a migration, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The phase at the beginning.
    pub start: u8,
    /// How often the phase may change, not counting a step out of the hush.
    pub walks: u8,
    /// How many grants may be believed.
    pub grants: u8,
    /// How many tokens each store draws.
    pub draws: u8,
    /// For how many ticks knowledge of the phase is valid for a hold. For a new grant it is valid for one tick.
    pub hold: u8,
    /// Whether stores go away and come back.
    pub outages: bool,
    /// Whether one store may lose its record once.
    pub losses: bool,
    /// Whether the phase only moves away from the start.
    pub one_way: bool,
    /// Near the ends, knowledge is valid for a grant as long as for a hold, and the hush waits for that time.
    pub relaxed: bool,
    /// Whether a second change may follow, back to the store where the first one began, with its own records.
    pub second: bool,
    /// The fault or variant that is built in, if any.
    pub mutant: Option<Mutant>,
}

impl Migration {
    /// Starts in this phase, with two grants and two tokens for each store.
    #[must_use]
    pub const fn from(start: u8, walks: u8) -> Self {
        Self {
            start,
            walks,
            grants: 2,
            draws: 2,
            hold: 2,
            outages: false,
            losses: false,
            one_way: false,
            relaxed: false,
            second: false,
            mutant: None,
        }
    }

    pub(super) const fn is(&self, mutant: Mutant) -> bool {
        matches!(self.mutant, Some(built_in) if built_in as u8 == mutant as u8)
    }

    /// The stores that a hold needs.
    pub(super) fn needs(&self, phase: u8) -> [bool; 2] {
        let needs = match phase % SECOND {
            0 | 1 => [true, false],
            2 if self.is(Mutant::HushNeedsNoPair) => [true, false],
            2 => [true, true],
            _ => [false, true],
        };
        in_order(phase, needs)
    }

    /// The stores in which a new grant takes the lock, and the store whose token it has.
    pub(super) fn takes(&self, phase: u8) -> Option<([bool; 2], usize)> {
        let [first, second] = order(phase);
        let (takes, counts) = match phase % SECOND {
            0 => ([true, false], first),
            1 if self.is(Mutant::TakesOneOfTwo) => ([true, false], first),
            1 => ([true, true], first),
            3 if self.is(Mutant::TakesOneOfTwo) => ([false, true], second),
            3 => ([true, true], second),
            4 => ([false, true], second),
            _ => return None,
        };
        Some((in_order(phase, takes), counts))
    }

    /// How long both records must have had the same phase before the next step.
    pub(super) const fn pause_before(&self, from: u8, to: u8) -> u8 {
        if self.is(Mutant::StepsAtOnce) {
            return 0;
        }
        let hasty = self.is(Mutant::SecondIsHasty) && to > SECOND;
        let relaxed = self.relaxed && to % SECOND == 2 && from != to && !hasty;
        let end = matches!(to % SECOND, 0 | 4);
        match (end || relaxed) && !self.is(Mutant::LastStepAsOthers) {
            true => self.hold,
            false => GRANT,
        }
    }
}

/// The store from which the change of this phase moves, and the store to which it moves.
pub(super) const fn order(phase: u8) -> [usize; 2] {
    match phase < SECOND {
        true => [OLD, NEW],
        false => [NEW, OLD],
    }
}

/// Sorts two values, given in that order, by store.
fn in_order(phase: u8, of: [bool; 2]) -> [bool; 2] {
    order(phase).map(|store| of[store])
}
