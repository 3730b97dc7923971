//! What administrators do: they write the records, and walk through the phases.

use super::model::Steps;
use super::state::{Event, Mutant, NEW, NONE, OLD, State};

impl Steps<'_> {
    pub(super) fn walk(&mut self) {
        let from = self.from;
        let (old, new) = (from.stores[OLD].record, from.stores[NEW].record);
        if old == NONE || new == NONE || old != new {
            return self.repair(old, new);
        }
        self.take_floor(old);
        for to in [old.wrapping_sub(1), old + 1] {
            let to = match (old, to) {
                (1, 2) if self.migration.is(Mutant::NoHush) => 3,
                (3, 2) if self.migration.is(Mutant::NoHush) => 1,
                _ => to,
            };
            self.go(old, to);
        }
    }

    /// A record that was lost comes back from the other store, and the new store's follows the old one's.
    fn repair(&mut self, old: u8, new: u8) {
        let from = self.from;
        let (source, target) = if old == NONE { (NEW, OLD) } else { (OLD, NEW) };
        if from.stores[OLD].up && from.stores[NEW].up {
            let mut to = from;
            if self.migration.is(Mutant::CountsFromAnswer) {
                to.stores[target].before = (new, from.stores[target].floors);
            }
            to.stores[target].record = from.stores[source].record;
            to.stores[target].floors = from.stores[source].floors;
            to.since = 0;
            self.add(Event::Repairs(target), to);
        }
        let intrudes = self.migration.is(Mutant::TwoAdministrators) && from.stores[NEW].up;
        if !intrudes || old == NONE || new == NONE || from.walks >= self.migration.walks {
            return;
        }
        for phase in [new.wrapping_sub(1), new + 1] {
            if phase <= 4 && phase.abs_diff(old) == 2 {
                let mut to = from;
                to.stores[NEW].record = phase;
                to.walks += 1;
                self.add(Event::Intrudes(phase), to);
            }
        }
    }

    /// Takes the floor of the store whose tokens are to count next, once nobody is granted anything.
    fn take_floor(&mut self, phase: u8) {
        let (from, migration) = (self.from, self.migration);
        let no_hush = migration.is(Mutant::NoHush);
        let before_hush = migration.is(Mutant::FloorBeforeHush);
        let may = match migration.mutant {
            Some(Mutant::NoFloor) => false,
            Some(Mutant::FloorBeforeHush) => phase == migration.start,
            Some(Mutant::NoHush) => phase == 1 || phase == 3,
            _ => phase == 2,
        };
        let both_up = from.stores[OLD].up && from.stores[NEW].up;
        let waited = from.since >= migration.pause_before(phase, phase);
        if !may || from.ready.is_some() || !both_up || !waited {
            return;
        }
        for (source, target) in [(OLD, NEW), (NEW, OLD)] {
            if (no_hush || before_hush) && (target == NEW) != (phase < 2) {
                continue;
            }
            let mut to = from;
            let floor = from.stores[source].counter;
            to.ready = Some((target, floor));
            to.stores[target].counter = to.stores[target].counter.max(floor);
            self.add(Event::TakesFloor(target), to);
        }
    }

    fn go(&mut self, old: u8, phase: u8) {
        let (from, migration) = (self.from, self.migration);
        // It may not stop in the middle, where nothing is granted.
        let may = phase <= 4 && (from.walks < migration.walks || old == 2) && from.stores[OLD].up;
        let turns = migration.one_way && (phase < old) != (migration.start > 2);
        if !may || turns || from.since < migration.pause_before(old, phase) {
            return;
        }
        let mut to = from;
        let jumps = migration.is(Mutant::NoHush) && old.abs_diff(phase) == 2;
        let decides = (old == 2 && phase != 2) || jumps;
        if decides && !migration.is(Mutant::NoFloor) && !set_floor(&mut to, phase > old) {
            return;
        }
        if phase == 2 && !migration.is(Mutant::FloorBeforeHush) {
            to.ready = None;
        }
        if migration.is(Mutant::CountsFromAnswer) {
            to.stores[OLD].before = (old, from.stores[OLD].floors);
        }
        to.stores[OLD].record = phase;
        to.walks += 1;
        to.since = 0;
        self.add(Event::Phase(phase), to);
    }
}

/// Writes the floor with the record. `false` if it was not taken for this direction.
fn set_floor(to: &mut State, forward: bool) -> bool {
    let counts = if forward { NEW } else { OLD };
    match to.ready {
        Some((target, floor)) if target == counts => {
            to.stores[OLD].floors[counts] = floor;
            to.ready = None;
            true
        }
        _ => false,
    }
}
