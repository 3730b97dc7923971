//! The search: the first state, the possible steps, and the properties.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use super::state::{Claims, Client, IDLE, Message, Mutant, Stage, Step, Store, World, send};

impl Claims {
    fn deliver(&self, world: &mut World, message: Message) {
        match message {
            Message::Place {
                claim,
                number,
                sent,
            } => self.place(world, claim, number, sent),
            Message::Renew {
                claim,
                number,
                sent,
            } => self.renew(world, claim, number, sent),
            Message::Withdraw { claim, abandon } => self.withdraw(world, claim, abandon),
            answer => self.hear(world, answer),
        }
    }

    /// A client sends a request: for the lock, or for a renewal if it holds.
    fn request(&self, world: &mut World, claim: u8) {
        let sent = world.now;
        let client = &mut world.clients[usize::from(claim)];
        client.sent += 1;
        (client.pending, client.last) = (client.sent, sent);
        let number = client.sent;
        if self.is(Mutant::DrawsTokensBeforeWinning) && client.stage == Stage::Idle {
            world.store.counter += 1;
            client.token = world.store.counter;
        }
        let message = if client.stage == Stage::Holding {
            Message::Renew {
                claim,
                number,
                sent,
            }
        } else {
            client.stage = Stage::Asking;
            Message::Place {
                claim,
                number,
                sent,
            }
        };
        send(world, message);
    }
}

impl Model for Claims {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut clients = vec![IDLE; usize::from(self.clients)];
        let mut store = Store::default();
        if self.crowded {
            store.counter = 1;
            for (claim, client) in (0..).zip(&mut clients) {
                client.stage = Stage::Asking;
                client.queued = Some((0, 1));
                if claim > 0 {
                    store.queue.push(claim);
                }
            }
            store.holder = Some((0, self.lease + self.delay, 1));
            clients[0] = Client {
                stage: Stage::Holding,
                token: 1,
                valid: self.lease,
                confirmed: true,
                ..IDLE
            };
        }
        vec![World {
            now: 0,
            clients,
            store,
            messages: BTreeSet::new(),
            highest: u8::from(self.crowded),
            inverted: false,
            kept_until: 0,
            too_early: false,
            leftover: false,
            passed: false,
        }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.ticks {
            steps.push(Step::Tick);
        }
        for message in &world.messages {
            steps.extend([Step::Deliver(*message), Step::Lose(*message)]);
        }
        for (index, client) in world.clients.iter().enumerate() {
            let claim = index as u8;
            let may_send = client.sent < self.requests;
            match client.stage {
                // Idle clients are alike, so they start in the order of their numbers.
                Stage::Idle => {
                    if index == 0 || world.clients[index - 1].stage != Stage::Idle {
                        steps.push(Step::Ask(claim));
                    }
                }
                Stage::Asking => {
                    if may_send {
                        steps.push(Step::Ask(claim));
                    }
                    steps.push(Step::Leave(claim));
                }
                Stage::Holding => {
                    if may_send {
                        steps.push(Step::Renew(claim));
                    }
                    steps.push(Step::Leave(claim));
                }
                Stage::Leaving { .. } => {
                    // One request more than for the others.
                    if client.sent <= self.requests {
                        steps.push(Step::Withdraw(claim));
                    }
                }
                Stage::Done => {}
            }
        }
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = before.clone();
        let now = world.now;
        match step {
            Step::Tick => self.tick(&mut world),
            Step::Deliver(message) => {
                world.messages.remove(&message);
                self.deliver(&mut world, message);
            }
            Step::Lose(message) => {
                world.messages.remove(&message);
            }
            Step::Ask(claim) | Step::Renew(claim) => self.request(&mut world, claim),
            Step::Leave(claim) => {
                let client = &mut world.clients[usize::from(claim)];
                client.stage = Stage::Leaving { abandon: false };
                client.pending = 0;
            }
            Step::Withdraw(claim) => {
                let client = &mut world.clients[usize::from(claim)];
                let Stage::Leaving { abandon } = client.stage else {
                    return None;
                };
                client.sent += 1;
                client.last = now;
                send(&mut world, Message::Withdraw { claim, abandon });
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
            Property::always("at most one client holds", |_, world: &World| {
                let holds = |client: &&Client| client.stage == Stage::Holding;
                world.clients.iter().filter(holds).count() <= 1
            }),
            Property::always("tokens rise", |_, world: &World| !world.inverted),
            Property::always("the lock-delay is kept", |_, world: &World| {
                !world.too_early
            }),
            Property::always("a withdrawn claim is not queued", |_, world: &World| {
                !world.leftover
            }),
            Property::always("no grant passes the queue", |_, world: &World| {
                !world.passed
            }),
            Property::sometimes("every client has held", |_, world: &World| {
                usize::from(world.highest) >= world.clients.len()
            }),
            Property::sometimes("a pushed grant is believed", |_, world: &World| {
                let pushed = |c: &Client| c.stage == Stage::Holding && !c.confirmed;
                world.clients.iter().any(pushed)
            }),
        ]
    }
}
