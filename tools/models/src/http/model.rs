//! The search: the first state, the possible steps, and the properties.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::state::{
    Answer, CLIENTS, Client, Holder, Http, IDLE, Kind, Message, Mutant, REPLICAS, Stage, Step,
    Waiter, World,
};

impl Http {
    fn deliver(&self, world: &mut World, message: Message) {
        match message {
            Message::Request {
                kind,
                claim,
                number,
                replica,
                token,
            } => {
                if kind == Kind::Place {
                    world.seen[usize::from(replica)] |= 1 << claim;
                }
                self.ask(world, kind, (claim, number), replica, token);
            }
            Message::GiveBack { claim, token } => self.take_back(world, claim, token),
            Message::Push {
                claim,
                token,
                replica,
            } => self.hear_push(world, claim, token, replica),
            Message::Answer {
                answer,
                claim,
                number,
            } => self.hear(world, answer, claim, number),
        }
    }

    /// What a client may send.
    fn sends(&self, world: &World, claim: u8) -> Option<Kind> {
        let index = usize::from(claim);
        let (client, most) = (&world.clients[index], self.requests[index]);
        let may = client.used < most;
        match client.stage {
            // Idle clients are alike, so they start in the order of their numbers.
            Stage::Idle => {
                let turn =
                    index == 0 || client.again || world.clients[index - 1].stage != Stage::Idle;
                (may && turn).then_some(Kind::Place)
            }
            Stage::Asking => may.then_some(Kind::Place),
            Stage::Holding | Stage::Elsewhere => may.then_some(Kind::Renew),
            Stage::Leaving => (client.used < most + self.leaves).then_some(Kind::Withdraw),
            Stage::Done => None,
        }
    }

    fn steps_of(&self, world: &World, claim: u8, steps: &mut Vec<Step>) {
        let client = &world.clients[usize::from(claim)];
        for replica in 0..REPLICAS as u8 {
            // Replicas are alike. Only a place depends on the replica, and the first place of the first claim goes to
            // the first replica.
            let alike = claim == 0 && client.used == 0;
            match self.sends(world, claim) {
                Some(Kind::Place) if replica > 0 && alike => {}
                Some(Kind::Renew | Kind::Withdraw) if replica > 0 => {}
                Some(kind) => steps.push(Step::Send(kind, claim, replica)),
                None => {}
            }
            let polls = world.polls[usize::from(replica)][usize::from(claim)].is_some();
            if polls {
                steps.push(Step::EndPoll(replica, claim));
            } else if self.is(Mutant::GatewayWithdrawsTheSilent)
                && world.seen[usize::from(replica)] & (1 << claim) != 0
            {
                steps.push(Step::WithdrawSilent(replica, claim));
            }
        }
        if matches!(
            client.stage,
            Stage::Asking | Stage::Holding | Stage::Elsewhere
        ) {
            steps.push(Step::Leave(claim));
        }
    }

    fn believes(&self, client: &Client, now: u8) -> bool {
        let stage = match client.stage {
            Stage::Holding => true,
            Stage::Leaving => self.is(Mutant::BelievesWhileLeaving),
            _ => false,
        };
        stage && client.valid > now
    }

    /// Whether the store keeps the lock for this client at least as long as the client believes.
    fn is_kept(&self, world: &World, claim: u8) -> bool {
        let client = &world.clients[usize::from(claim)];
        let is_this = |holder: Holder| {
            holder.claim == claim && holder.token == client.token && holder.until >= client.valid
        };
        !self.believes(client, world.now) || world.holder.is_some_and(is_this)
    }

    /// Whether a claim whose withdrawal was answered has at most what a late request may cause.
    fn leaves_little(&self, world: &World, claim: u8) -> bool {
        let now = world.now;
        let holds = |holder: Holder| holder.claim == claim && holder.until > now + self.window;
        let waits = |waiter: &Waiter| waiter.claim == claim && waiter.until > now + 2 * self.window;
        world.clients[usize::from(claim)].stage != Stage::Done
            || !(world.holder.is_some_and(holds) || world.queue.iter().any(waits))
    }
}

impl Model for Http {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            now: 0,
            clients: vec![IDLE; usize::from(self.clients)],
            holder: None,
            queue: Vec::new(),
            counter: 0,
            polls: [[None; CLIENTS]; REPLICAS],
            seen: [0; REPLICAS],
            messages: BTreeSet::new(),
            repeats: self.repeats,
            highest: (0, self.clients),
            inverted: false,
            granted_again: false,
        };
        if self.crowded {
            world.counter = 1;
            world.holder = Some(Holder {
                claim: 0,
                until: self.ttl,
                token: 1,
                confirmed: true,
            });
            world.highest = (1, 0);
            world.clients[0] = Client {
                stage: Stage::Holding,
                token: 1,
                valid: self.ttl,
                ..IDLE
            };
            for claim in 1..self.clients {
                *world.client(claim) = Client {
                    stage: Stage::Asking,
                    used: 1,
                    pending: 1,
                    ..IDLE
                };
                world.queue.push(Waiter {
                    claim,
                    until: 2 * self.window,
                    replica: 0,
                });
                *world.poll(0, claim) = Some((1, 1));
                world.seen[0] |= 1 << claim;
            }
        }
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.ticks {
            steps.push(Step::Tick);
        }
        for message in &world.messages {
            steps.extend([Step::Deliver(*message), Step::Lose(*message)]);
            if world.repeats > 0 && matches!(message, Message::Request { .. }) {
                steps.push(Step::Repeat(*message));
            }
        }
        for claim in 0..self.clients {
            self.steps_of(world, claim, steps);
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
            Step::Repeat(message) => {
                world.repeats -= 1;
                self.deliver(&mut world, message);
            }
            Step::Lose(message) => {
                world.messages.remove(&message);
            }
            Step::Send(kind, claim, replica) => self.request(&mut world, kind, claim, replica),
            Step::Leave(claim) => self.leave(world.client(claim)),
            Step::EndPoll(replica, claim) => {
                let (number, _) = world.poll(replica, claim).take()?;
                if number > 0 {
                    let answer = Answer::Waits;
                    world.send(Message::Answer {
                        answer,
                        claim,
                        number,
                    });
                }
            }
            Step::WithdrawSilent(replica, claim) => {
                world.seen[usize::from(replica)] &= !(1 << claim);
                world.send(Message::Request {
                    kind: Kind::Withdraw,
                    claim,
                    number: 0,
                    replica,
                    token: 0,
                });
            }
        }
        self.forget(&mut world);
        (world != *before).then_some(world)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.messages.len() <= usize::from(self.in_flight)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "at most one client believes",
                |model: &Self, world: &World| {
                    let believes = |client: &&Client| model.believes(client, world.now);
                    world.clients.iter().filter(believes).count() <= 1
                },
            ),
            Property::always(
                "the store keeps what is believed",
                |model: &Self, world: &World| {
                    (0..model.clients).all(|claim| model.is_kept(world, claim))
                },
            ),
            Property::always("tokens rise", |_, world: &World| !world.inverted),
            Property::always(
                "the effect of a late request ends after a claim window",
                |model: &Self, world: &World| {
                    (0..model.clients).all(|claim| model.leaves_little(world, claim))
                },
            ),
            Property::sometimes("every client has held", |_, world: &World| {
                usize::from(world.highest.0) >= world.clients.len()
            }),
            Property::sometimes("a pushed grant is believed", |_, world: &World| {
                let unconfirmed = world.holder.filter(|holder| !holder.confirmed);
                unconfirmed.is_some_and(|holder| {
                    world.clients[usize::from(holder.claim)].stage == Stage::Holding
                })
            }),
            Property::sometimes("a released claim is granted again", |_, world: &World| {
                world.granted_again
            }),
        ]
    }
}
