//! The search: the first state, the possible steps, and the properties.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::state::{Bound, CLIENTS, Client, GONE, Kind, Message, Mutant, Stage, Step, World};

impl Bound {
    fn steps_of(&self, world: &World, claim: u8, steps: &mut Vec<Step>) {
        let index = usize::from(claim);
        let (client, entry) = (world.clients[index], world.table[index]);
        let may_send = client.used + claim < self.requests;
        // Idle clients are alike, so they start in the order of their numbers.
        let turn = index == 0 || world.clients[0].stage != Stage::Idle;
        match client.stage {
            Stage::Idle if may_send && turn => steps.push(Step::Place(claim)),
            Stage::Asking if may_send => steps.push(Step::Place(claim)),
            Stage::Holding => {
                if may_send {
                    steps.push(Step::Renew(claim));
                }
                steps.push(Step::Release(claim));
            }
            _ => {}
        }
        if matches!(client.stage, Stage::Asking | Stage::Holding) {
            steps.push(Step::Die(claim));
        }
        let early = u8::from(self.is(Mutant::ReapsEarly));
        let due = entry.until > 0 && world.now + early >= entry.until && !self.is(Mutant::NoReaper);
        let again = entry.ending && !self.is(Mutant::DeletesOnce);
        // Calls about one claim go out one at a time.
        let calls = |message: &Message| matches!(*message, Message::Call { claim: other, .. } if other == claim);
        let busy = world.messages.iter().any(calls) && !self.is(Mutant::ReapsBesideACall);
        if world.lives && !busy && (due || again) {
            steps.push(Step::Reap(claim));
        }
    }

    /// Whether the claim of a client that has gone stays for ever: its key exists, neither the table nor a message will
    /// end it, and the other client keeps the session.
    fn is_orphan(&self, world: &World, claim: usize) -> bool {
        let (entry, other) = (world.table[claim], world.clients[1 - claim].stage);
        let comes = world.messages.iter().any(|message| {
            matches!(*message, Message::Delete { claim: of } | Message::Release { claim: of }
                if usize::from(of) == claim)
        });
        let reaped = !(self.is(Mutant::NoReaper) && entry.until <= world.now);
        let ends = (entry.until > 0 && reaped) || entry.ending;
        world.clients[claim].stage == Stage::Gone
            && world.lives
            && world.session > 0
            && world.keys.contains(&(claim as u8))
            && matches!(other, Stage::Asking | Stage::Holding)
            && !comes
            && !ends
    }
}

impl Model for Bound {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 0,
            clients: Default::default(),
            keys: Vec::new(),
            session: 0,
            table: Default::default(),
            lives: true,
            messages: BTreeSet::new(),
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.ticks {
            steps.push(Step::Tick);
        }
        for message in &world.messages {
            steps.extend([Step::Deliver(*message), Step::Lose(*message)]);
        }
        for claim in 0..CLIENTS as u8 {
            self.steps_of(world, claim, steps);
        }
        if world.lives {
            if self.keeps_alive && world.session > 0 {
                steps.push(Step::KeepAlive);
            }
            steps.push(Step::ReplicaDies);
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        match step {
            Step::Tick => self.tick(&mut world),
            Step::Deliver(message) => {
                world.messages.remove(&message);
                self.deliver(&mut world, message);
            }
            Step::Lose(message) => {
                world.messages.remove(&message);
            }
            Step::Place(claim) => self.request(&mut world, Kind::Place, claim),
            Step::Renew(claim) => self.request(&mut world, Kind::Renew, claim),
            Step::Release(claim) => {
                *world.client(claim) = GONE;
                world.send(Message::Release { claim });
            }
            Step::Die(claim) => *world.client(claim) = GONE,
            Step::Reap(claim) => {
                let entry = world.entry(claim);
                entry.until = 0;
                entry.ending = !self.is(Mutant::DeletesOnce);
                world.send(Message::Delete { claim });
            }
            Step::KeepAlive => world.session = world.now + self.session,
            Step::ReplicaDies => self.die(&mut world),
        }
        // Answers that no client waits for.
        let clients = world.clients;
        world.messages.retain(|message| {
            !matches!(*message, Message::Answer { claim, number, .. }
                if clients[usize::from(claim)].pending != number)
        });
        (world != *before).then_some(world)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.messages.len() <= usize::from(self.in_flight)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the store keeps what is believed", |_, world: &World| {
                let holds = |claim: u8| world.keys.first() == Some(&claim);
                let is_kept = |(claim, client): (u8, &Client)| {
                    client.stage != Stage::Holding || client.valid <= world.now || holds(claim)
                };
                (0..).zip(&world.clients).all(is_kept)
            }),
            Property::always(
                "the claim of a client that has gone is ended",
                |model: &Self, world: &World| {
                    (0..CLIENTS).all(|claim| !model.is_orphan(world, claim))
                },
            ),
            Property::sometimes("the second holds after the first", |_, world: &World| {
                world.clients[0].stage == Stage::Gone && world.clients[1].stage == Stage::Holding
            }),
        ]
    }
}
