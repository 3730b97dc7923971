//! The search: the first state, the steps of no party, and the properties.

use stateright::{Model, Property};

use super::bounds::Migration;
use super::state::{Broken, Client, Event, Holder, Mutant, NEW, NONE, OLD, State, Step, Store};

/// The steps from a state.
pub(super) struct Steps<'a> {
    pub(super) migration: &'a Migration,
    pub(super) from: State,
    pub(super) found: &'a mut Vec<Step>,
}

impl Steps<'_> {
    /// Adds a step, unless it changes nothing.
    pub(super) fn add(&mut self, event: Event, mut to: State) {
        for client in 0..2 {
            if to.clients[client].believes && !self.migration.is_valid(&to.clients[client]) {
                to.let_go(client);
            }
        }
        if to.clients.iter().all(|client| client.believes) {
            to.broken = Some(Broken::TwoBelieve);
        }
        let to = to.sorted();
        if to != self.from {
            self.found.push(Step { event, to });
        }
    }

    fn tick(&mut self) {
        let (mut to, hold) = (self.from, self.migration.hold);
        for client in &mut to.clients {
            client.age = (client.age + 1).min(hold);
            if client.age == hold && !client.believes {
                // It must ask again before anything else.
                client.phase = NONE;
                client.floors = [0; 2];
            }
            client.left = client.left.map(|left| left.saturating_sub(1));
        }
        for store in &mut to.stores {
            store.left = store.left.saturating_sub(1);
            if store.left == 0 {
                store.holder = Holder::Nobody;
            }
            if !self.migration.is(Mutant::CountsFromAnswer) {
                store.before = (store.record, store.floors);
            }
        }
        let same = self.from.stores[OLD].record == self.from.stores[NEW].record;
        to.since = if same { (to.since + 1).min(hold) } else { 0 };
        self.add(Event::Tick, to);
    }

    fn store(&mut self, store: usize) {
        let from = self.from;
        if self.migration.outages {
            let mut to = from;
            to.stores[store].up ^= true;
            self.add(Event::Outage(store), to);
        }
        if from.stores[store].holder == Holder::Leaving && from.stores[store].up {
            let mut to = from;
            to.stores[store].holder = Holder::Nobody;
            to.stores[store].left = 0;
            self.add(Event::Withdrawal(store), to);
        }
        if self.migration.losses && !from.record_lost && from.stores[store].record != NONE {
            let mut to = from;
            to.stores[store].record = NONE;
            to.record_lost = true;
            self.add(Event::RecordLost(store), to);
        }
    }
}

impl Migration {
    /// Whether the belief of a client is still valid.
    fn is_valid(&self, client: &Client) -> bool {
        if client.phase == NONE {
            return false;
        }
        let needs = self.needs(client.phase);
        let fresh = client.age < self.hold || self.is(Mutant::HoldsOutliveKnowledge);
        fresh && (0..2).all(|store| !needs[store] || client.left[store] > 0)
    }
}

impl Model for Migration {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        // The store whose tokens do not count has lower tokens. The tokens of the new store were raised before they
        // counted.
        let far = self.start > 2;
        let hush_from = if self.start == 2 { 1 } else { NONE };
        let floors = if far { [0, 3] } else { [0, 0] };
        let store = |counter| Store {
            up: true,
            holder: Holder::Nobody,
            left: 0,
            counter,
            draws: 0,
            record: self.start,
            hush_from,
            floors,
            before: (self.start, floors),
        };
        vec![State {
            clients: [Client::new(self.hold); 2],
            stores: [store(3), store(if far { 6 } else { 0 })],
            since: self.hold,
            ready: None,
            walks: 0,
            highest: 0,
            grants: 0,
            record_lost: false,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, found: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        let mut steps = Steps {
            migration: self,
            from: *state,
            found,
        };
        steps.tick();
        for store in 0..2 {
            steps.store(store);
        }
        for client in 0..2 {
            steps.client(client);
        }
        steps.walk();
    }

    fn next_state(&self, _: &State, step: Step) -> Option<State> {
        Some(step.to)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one believes", |_, state: &State| {
                state.broken != Some(Broken::TwoBelieve)
            }),
            Property::always("tokens increase", |_, state: &State| {
                state.broken != Some(Broken::TokenNotAbove)
            }),
            Property::sometimes("two grants are believed", |model: &Self, state: &State| {
                state.grants == model.grants
            }),
            Property::sometimes(
                "the walk comes to its end",
                |model: &Self, state: &State| state.walks >= model.walks,
            ),
        ]
    }
}
