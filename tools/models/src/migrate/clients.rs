//! The steps of clients.

use super::bounds::order;
use super::model::Steps;
use super::state::{Broken, Event, GRANT, Holder, LEASE, Mutant, NONE, SECOND};

impl Steps<'_> {
    pub(super) fn client(&mut self, client: usize) {
        for store in 0..2 {
            if self.from.stores[store].up {
                self.hears(client, store);
                self.takes(client, store);
            }
        }
        let own = self.from.clients[client];
        if own.believes || own.left != [0; 2] || own.tokens != [0; 2] {
            let mut to = self.from;
            to.let_go(client);
            self.add(Event::LetsGo(client), to);
        }
        self.believes(client);
    }

    /// Asks for the record. The answer is the record at some moment since the request was sent.
    fn hears(&mut self, client: usize, store: usize) {
        let of = self.from.stores[store];
        let ago = u8::from(!self.migration.is(Mutant::CountsFromAnswer));
        let heard = [
            (of.record, of.floors, 0),
            (of.record, of.floors, 1),
            (of.before.0, of.before.1, ago),
        ];
        for (record, floors, ago) in heard {
            let phase = match record {
                NONE if self.migration.is(Mutant::NoRecordIsOld) => 0,
                NONE => continue,
                record => record,
            };
            let mut to = self.from;
            let of_second = phase >= SECOND;
            if to.clients[client].of_second != of_second {
                // This is another program, which starts without knowledge.
                to.let_go(client);
            }
            let own = &mut to.clients[client];
            (own.phase, own.age, own.floors) = (phase, ago, floors);
            own.of_second = of_second;
            let event = Event::Hears {
                client,
                store,
                phase,
                ago,
            };
            self.add(event, to);
        }
    }

    /// Takes a store, prolongs its lease there, or completes its hold.
    fn takes(&mut self, client: usize, store: usize) {
        let (own, of) = (self.from.clients[client], self.from.stores[store]);
        if own.phase == NONE {
            return;
        }
        let [first, second] = order(own.phase);
        let may = match own.phase % SECOND {
            0 => store == first,
            1 | 3 if self.migration.is(Mutant::TakesOneOfTwo) => true,
            1..=3 => store == first || own.left != [0; 2],
            _ => store == second,
        };
        let mine = of.holder == Holder::Client(client);
        let admitted = mine || (of.holder == Holder::Nobody && of.draws < self.migration.draws);
        if !may || !admitted {
            return;
        }
        let mut to = self.from;
        if !mine && own.tokens[store] != 0 {
            // Its claim had ended, and another client might have held the lock.
            to.let_go(client);
            return self.add(Event::Loses(client, store), to);
        }
        let granted = &mut to.stores[store];
        if !mine {
            granted.counter += 1;
            granted.draws += 1;
            granted.holder = Holder::Client(client);
        }
        granted.left = LEASE;
        let token = match own.tokens[store] {
            0 => granted.counter,
            token => token,
        };
        self.add(Event::Unheard(client, store), to);
        for ago in 0..2 {
            let mut to = to;
            let left = &mut to.clients[client].left[store];
            *left = (*left).max(LEASE - ago);
            to.clients[client].tokens[store] = token;
            let event = Event::Has { client, store, ago };
            self.add(event, to);
        }
    }

    /// Begins to believe, if it has all that its phase needs.
    fn believes(&mut self, client: usize) {
        let own = self.from.clients[client];
        if own.believes || own.phase == NONE || self.from.grants >= self.migration.grants {
            return;
        }
        let Some((needs, counts)) = self.migration.takes(own.phase) else {
            return;
        };
        let at_an_end = self.migration.relaxed && matches!(own.phase % SECOND, 0 | 4);
        let long = at_an_end || self.migration.is(Mutant::GrantsByOldKnowledge);
        let carries = if long { self.migration.hold } else { GRANT };
        let has = |store: usize| own.left[store] > 0 && own.tokens[store] > 0;
        if own.age >= carries || (0..2).any(|store| needs[store] && !has(store)) {
            return;
        }
        let (mut to, token) = (self.from, own.tokens[counts]);
        if token <= own.floors[counts] && !self.migration.is(Mutant::IgnoresFloor) {
            to.drop_claim(client, counts);
            return self.add(Event::GivesBack(client), to);
        }
        to.clients[client].believes = true;
        to.grants += 1;
        if token <= to.highest {
            to.broken = Some(Broken::TokenNotAbove);
        }
        to.highest = to.highest.max(token);
        self.add(Event::Believes(client, token), to);
    }
}
