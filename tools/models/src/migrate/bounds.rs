//! The bounds of a search, and the rules of the phases.

use super::state::{GRANT, Mutant, NEW, OLD};

/// A model of a migration, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The phase at the beginning.
    pub start: u8,
    /// How often the phase may change, beside leaving the hush.
    pub walks: u8,
    /// How many grants are believed.
    pub grants: u8,
    /// How many tokens each store draws.
    pub draws: u8,
    /// For how many ticks knowledge of the phase carries a hold. It carries a new grant for one.
    pub hold: u8,
    /// Whether stores go away and come back.
    pub outages: bool,
    /// Whether one store may lose its record, once.
    pub losses: bool,
    /// Whether the phase only moves away from the start.
    pub one_way: bool,
    /// The fault that is built in, or a variant.
    pub mutant: Option<Mutant>,
}

impl Migration {
    /// Two grants and two tokens a store, from this phase.
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
            mutant: None,
        }
    }

    pub(super) const fn is(&self, mutant: Mutant) -> bool {
        matches!(self.mutant, Some(built_in) if built_in as u8 == mutant as u8)
    }

    /// The stores that a hold needs.
    pub(super) const fn needs(&self, phase: u8) -> [bool; 2] {
        match phase {
            0 | 1 => [true, false],
            2 if self.is(Mutant::HushNeedsNoPair) => [true, false],
            2 => [true, true],
            _ => [false, true],
        }
    }

    /// The stores that a new grant takes, and the one whose token it has.
    pub(super) const fn takes(&self, phase: u8) -> Option<([bool; 2], usize)> {
        Some(match phase {
            0 => ([true, false], OLD),
            1 if self.is(Mutant::TakesOneOfTwo) => ([true, false], OLD),
            1 => ([true, true], OLD),
            3 if self.is(Mutant::TakesOneOfTwo) => ([false, true], NEW),
            3 => ([true, true], NEW),
            4 => ([false, true], NEW),
            _ => return None,
        })
    }

    /// How long both records must have said the same before the next step.
    pub(super) const fn pause_before(&self, from: u8, to: u8) -> u8 {
        if self.is(Mutant::StepsAtOnce) {
            return 0;
        }
        let relaxed = self.is(Mutant::Relaxed) && to == 2 && from != 2;
        match (to == 0 || to == 4 || relaxed) && !self.is(Mutant::LastStepAsOthers) {
            true => self.hold,
            false => GRANT,
        }
    }
}
