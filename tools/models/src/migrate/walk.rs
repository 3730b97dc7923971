//! The steps of administrators: they write the records, and change the phase.

use super::bounds::order;
use super::model::Steps;
use super::state::{Event, Mutant, NEW, NONE, OLD, SECOND, State};

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
                // This step belongs to the second change, which has a set of its own.
                (SECOND, 4) => continue,
                _ => to,
            };
            self.go(old, to);
        }
        let over = old == 4 || old == 3 && self.migration.is(Mutant::SecondBeforeTheEnd);
        if self.migration.second && over && from.walks < self.migration.walks {
            self.begin_second();
        }
    }

    /// The second change starts from the store that grants now. That store's record decides from now on. There is no
    /// wait: a client that knows the last phase of the first change needs the same store for a hold.
    fn begin_second(&mut self) {
        let mut to = self.from;
        if to.stores[NEW].up {
            to.stores[NEW].record = SECOND;
            to.stores[NEW].floors = [0; 2];
            to.stores[NEW].hush_from = NONE;
            to.ready = None;
            to.walks += 1;
            to.since = 0;
            self.add(Event::Phase(SECOND), to);
        }
    }

    /// A lost record is restored from the other store. The record that does not decide follows the one that decides.
    fn repair(&mut self, old: u8, new: u8) {
        let from = self.from;
        let second = |record| record != NONE && record >= SECOND;
        let decides = if second(old) || second(new) { NEW } else { OLD };
        if (decides, old) == (NEW, 4) && !self.migration.one_way {
            let mut to = from;
            to.stores[OLD].record = 3;
            self.add(Event::Meets, to);
        }
        if (decides, old) == (NEW, 3) && !self.migration.is(Mutant::SecondBeforeTheEnd) {
            // Neither of them continues, since each finds the other's record.
            return;
        }
        let lost = from.stores[decides].record == NONE;
        let target = if lost { decides } else { 1 - decides };
        if from.stores[OLD].up && from.stores[NEW].up {
            let mut to = from;
            let source = from.stores[1 - target];
            let own = &mut to.stores[target];
            if self.migration.is(Mutant::CountsFromAnswer) {
                own.before = (own.record, own.floors);
            }
            (own.record, own.floors) = (source.record, source.floors);
            // The lost record may have had the end of the hush.
            let forgets = lost && !self.migration.is(Mutant::LostRecordKeepsOrigin);
            own.hush_from = if forgets { NONE } else { source.hush_from };
            if lost {
                to.ready = None;
            }
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

    /// Takes the floor of the store whose tokens will count next, once no client is granted anything.
    fn take_floor(&mut self, phase: u8) {
        let (from, migration) = (self.from, self.migration);
        let no_hush = migration.is(Mutant::NoHush);
        let before_hush = migration.is(Mutant::FloorBeforeHush);
        let may = match migration.mutant {
            Some(Mutant::NoFloor) => false,
            Some(Mutant::FloorBeforeHush) => phase == migration.start,
            Some(Mutant::NoHush) => phase == 1 || phase == 3,
            _ => phase % SECOND == 2,
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
        let [arbiter, next] = order(old);
        let forward = phase > old;
        // It must not stop in the middle, where nothing is granted.
        let walks = from.walks < migration.walks || old % SECOND == 2;
        let may = phase <= SECOND + 4 && phase != SECOND && walks && from.stores[arbiter].up;
        let turns = migration.one_way && forward == (migration.start > 2 && !migration.second);
        if !may || turns || from.since < migration.pause_before(old, phase) {
            return;
        }
        let mut to = from;
        let jumps = migration.is(Mutant::NoHush) && old.abs_diff(phase) == 2;
        let origin = to.stores[arbiter].hush_from;
        let counts = if forward { next } else { arbiter };
        let wrong = match migration.mutant {
            Some(Mutant::NoFloor) => true,
            Some(Mutant::NoFloorBack) => !forward,
            Some(Mutant::NoSecondFloor) => old > SECOND,
            _ => false,
        };
        // Back in the phase from which the hush came, the tokens continue as before.
        let decides = (old % SECOND == 2 && phase != old && origin != phase) || jumps;
        if decides && !wrong && !set_floor(&mut to, arbiter, counts) {
            return;
        }
        if !migration.is(Mutant::FloorBeforeHush) {
            to.ready = None;
        }
        let decider = &mut to.stores[arbiter];
        if migration.is(Mutant::CountsFromAnswer) {
            decider.before = (old, decider.floors);
        }
        decider.record = phase;
        decider.hush_from = if phase % SECOND == 2 { old } else { NONE };
        to.walks += 1;
        to.since = 0;
        self.add(Event::Phase(phase), to);
    }
}

/// Writes the floor with the record. `false` if the floor was taken for another store.
fn set_floor(to: &mut State, arbiter: usize, counts: usize) -> bool {
    match to.ready {
        Some((target, floor)) if target == counts => {
            to.stores[arbiter].floors[counts] = floor;
            to.ready = None;
            true
        }
        _ => false,
    }
}
