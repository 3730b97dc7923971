//! A claim's life at one store, as a model: place, the line, hand-off by push, the claim window, renewal, release, abandon
//! and lock-delay; with messages that are late without limit, overtake each other, or never arrive.
//!
//! Time goes in ticks that all see alike; a margin for drift would only add ticks. A process that is stopped is one that
//! takes no step.

use stateright::{Model, Property};

/// The size of the search, and what is built wrong.
#[derive(Clone, Debug)]
pub struct Claims {
    /// How many clients there are, each with one claim.
    pub clients: u8,
    /// How many ticks there are.
    pub ticks: u8,
    /// The lease.
    pub lease: u8,
    /// For how long a lock that was handed over waits for a sign of life.
    pub window: u8,
    /// The lock-delay.
    pub delay: u8,
    /// How many requests each client may send.
    pub requests: u8,
    /// How many messages may be on their way at once.
    pub flying: u8,
    /// Whether it begins with one that holds and all others in line, instead of with nothing.
    pub crowded: bool,
    /// The fault that was built in, if any.
    pub mutant: Option<Mutant>,
}

/// One way to build it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Validity counts from when the answer came.
    CountsFromTheAnswer,
    /// The validity of a pushed grant counts from when the push came.
    CountsFromThePush,
    /// A push is believed whatever its token.
    BelievesOldPushes,
    /// A release frees the lock whoever holds it.
    ReleasesWhoeverHolds,
    /// A pushed grant is believed for a lease, and the store gives it a window.
    TakesTheWindowForALease,
    /// An answer to a renewal revives what was lost.
    RevivesTheLost,
    /// The token is drawn before the lock is won.
    DrawsTokensFirst,
    /// A client that gives up does not leave the line.
    NeverLeavesTheLine,
    /// What is abandoned is free at once.
    ForgetsTheDelay,
    /// The lock is taken although others stand in line.
    IgnoresTheLine,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::CountsFromTheAnswer,
        Self::CountsFromThePush,
        Self::BelievesOldPushes,
        Self::ReleasesWhoeverHolds,
        Self::TakesTheWindowForALease,
        Self::RevivesTheLost,
        Self::DrawsTokensFirst,
        Self::NeverLeavesTheLine,
        Self::ForgetsTheDelay,
        Self::IgnoresTheLine,
    ];
}

/// A message on its way. `number` is the request that it is, or answers; `sent` when that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// To the store: take the lock or stand in line, or report.
    Place {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When it was sent.
        sent: u8,
    },
    /// To the store: prolong.
    Renew {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When it was sent.
        sent: u8,
    },
    /// To the store: release, abandon, or leave the line.
    Withdraw {
        /// The claim.
        claim: u8,
        /// Whether it was lost before.
        abandon: bool,
    },
    /// To a client: it holds.
    Held {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When that was sent.
        sent: u8,
        /// The token.
        token: u8,
    },
    /// To a client: it stands in line.
    Waits {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When that was sent.
        sent: u8,
        /// The counter of tokens at that moment.
        counter: u8,
    },
    /// To a client, of the store's own accord: it holds.
    Push {
        /// The claim.
        claim: u8,
        /// The token.
        token: u8,
    },
    /// To a client: it is prolonged.
    Kept {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When that was sent.
        sent: u8,
    },
    /// To a client: it does not hold.
    NotHeld {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
    },
    /// To a client: nothing of the claim is left.
    Gone {
        /// The claim.
        claim: u8,
    },
}

/// Where a client stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It has not asked.
    Idle,
    /// It has asked; no answer, or in line.
    Asking,
    /// It believes to hold while its validity lasts.
    Holding,
    /// It withdraws until that is confirmed: after a loss, or not.
    Leaving {
        /// Whether it lost the lock before.
        abandon: bool,
    },
    /// Over.
    Done,
}

/// What a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Where it stands.
    pub stage: Stage,
    /// How many requests it has sent.
    pub sent: u8,
    /// The request that it waits for; 0 for none.
    pending: u8,
    /// Of the newest answer that said it stands in line: when it was asked for, and the counter in it.
    line: Option<(u8, u8)>,
    /// A push that came before any such answer; 0 for none.
    mail: u8,
    /// Its token.
    pub token: u8,
    /// When its validity ends.
    pub valid: u8,
    /// Whether the store is known to have its whole lease.
    confirmed: bool,
    /// When its last request was sent.
    last: u8,
}

/// What the store has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// Who holds, until when, and with which token.
    holder: Option<(u8, u8, u8)>,
    /// Who waits, in order.
    line: Vec<u8>,
    counter: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The time.
    pub now: u8,
    clients: Vec<Client>,
    store: Store,
    /// What is on its way, sorted.
    messages: Vec<Message>,
    /// The highest token that anybody believed in.
    highest: u8,
    /// A lower one was believed in after it.
    inverted: bool,
    /// Until when a lost lock is to stay with the one who lost it.
    kept_until: u8,
    /// It was granted to another before.
    too_early: bool,
    /// The store said that nothing is left of a claim that stands in line.
    left: bool,
    /// Somebody was granted the lock past a line.
    passed: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A message arrives.
    Deliver(Message),
    /// A message never arrives.
    Lose(Message),
    /// A client asks, or asks again.
    Ask(u8),
    /// A holder renews.
    Renew(u8),
    /// A client lets go, or gives up waiting.
    Leave(u8),
    /// A client that leaves sends that, or sends it again.
    Withdraw(u8),
}

impl Claims {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Gives the lock to a claim for so long.
    fn hold(&self, world: &mut World, claim: u8, lasts: u8) -> u8 {
        let token = if self.is(Mutant::DrawsTokensFirst) {
            world.clients[usize::from(claim)].token
        } else {
            world.store.counter += 1;
            world.store.counter
        };
        world.too_early |= world.now < world.kept_until;
        world.store.holder = Some((claim, world.now + lasts, token));
        token
    }

    /// Forgets a holder whose time is over, then serves the line. Returns the token of `own` if that was served.
    fn advance(&self, world: &mut World, own: Option<u8>) -> Option<u8> {
        if world
            .store
            .holder
            .is_some_and(|(_, until, _)| until <= world.now)
        {
            world.store.holder = None;
        }
        if world.store.holder.is_some() || world.store.line.is_empty() {
            return None;
        }
        // Popped before it is told.
        let claim = world.store.line.remove(0);
        if Some(claim) == own {
            return Some(self.hold(world, claim, self.lease + self.delay));
        }
        // Without a sign of life it is over after the window, and a lock-delay is not owed yet.
        let token = self.hold(world, claim, self.window);
        send(world, Message::Push { claim, token });
        None
    }

    fn place(&self, world: &mut World, claim: u8, number: u8, sent: u8) {
        if let Some((holder, until, token)) = world.store.holder
            && holder == claim
            && until > world.now
        {
            let until = world.now + self.lease + self.delay;
            world.store.holder = Some((claim, until, token));
            let held = Message::Held {
                claim,
                number,
                sent,
                token,
            };
            return send(world, held);
        }
        let over = world
            .store
            .holder
            .is_none_or(|(_, until, _)| until <= world.now);
        let held = if over && (world.store.line.is_empty() || self.is(Mutant::IgnoresTheLine)) {
            world.passed |= world.store.line.iter().any(|other| *other != claim);
            Some(self.hold(world, claim, self.lease + self.delay))
        } else {
            if !world.store.line.contains(&claim) {
                world.store.line.push(claim);
            }
            self.advance(world, Some(claim))
        };
        let counter = world.store.counter;
        send(
            world,
            match held {
                Some(token) => Message::Held {
                    claim,
                    number,
                    sent,
                    token,
                },
                None => Message::Waits {
                    claim,
                    number,
                    sent,
                    counter,
                },
            },
        );
    }

    fn renew(&self, world: &mut World, claim: u8, number: u8, sent: u8) {
        match world.store.holder {
            Some((holder, until, token)) if until > world.now && holder == claim => {
                let until = world.now + self.lease + self.delay;
                world.store.holder = Some((holder, until, token));
                send(
                    world,
                    Message::Kept {
                        claim,
                        number,
                        sent,
                    },
                );
            }
            _ => send(world, Message::NotHeld { claim, number }),
        }
        self.advance(world, None);
    }

    fn withdraw(&self, world: &mut World, claim: u8, abandon: bool) {
        let any = self.is(Mutant::ReleasesWhoeverHolds);
        if let Some((holder, until, token)) = world.store.holder
            && (any || holder == claim)
        {
            world.store.holder = match abandon && !self.is(Mutant::ForgetsTheDelay) {
                true => Some((holder, until.min(world.now + self.delay), token)),
                false => None,
            };
        }
        if !self.is(Mutant::NeverLeavesTheLine) {
            world.store.line.retain(|other| *other != claim);
        }
        world.left |= world.store.line.contains(&claim);
        self.advance(world, None);
        send(world, Message::Gone { claim });
    }

    /// A message to a client.
    fn hear(&self, world: &mut World, message: Message) {
        let now = world.now;
        match message {
            Message::Held {
                claim,
                number,
                sent,
                token,
            } => {
                let client = &mut world.clients[usize::from(claim)];
                if client.stage != Stage::Asking || client.pending != number {
                    return;
                }
                let from = match self.is(Mutant::CountsFromTheAnswer) {
                    true => now,
                    false => sent,
                };
                client.pending = 0;
                client.confirmed = true;
                self.believe(world, claim, token, from + self.lease);
            }
            Message::Waits {
                claim,
                number,
                sent,
                counter,
            } => {
                let client = &mut world.clients[usize::from(claim)];
                if client.stage != Stage::Asking || client.pending != number {
                    return;
                }
                client.pending = 0;
                client.line = Some((sent, counter));
                let mail = std::mem::take(&mut client.mail);
                if mail > 0 {
                    self.pushed(world, claim, mail);
                }
            }
            Message::Push { claim, token } => match world.clients[usize::from(claim)].stage {
                Stage::Asking => self.pushed(world, claim, token),
                Stage::Holding => {}
                // It is not waited for: what was granted is given back at once, or abandoned like the loss before it.
                stage => {
                    let abandon = stage == Stage::Leaving { abandon: true };
                    send(world, Message::Withdraw { claim, abandon });
                }
            },
            Message::Kept {
                claim,
                number,
                sent,
            } => {
                let client = &mut world.clients[usize::from(claim)];
                let revives = self.is(Mutant::RevivesTheLost)
                    && client.stage == Stage::Leaving { abandon: true };
                if client.pending == number && (client.stage == Stage::Holding || revives) {
                    client.pending = 0;
                    client.stage = Stage::Holding;
                    client.confirmed = true;
                    client.valid = client.valid.max(sent + self.lease);
                }
            }
            Message::NotHeld { claim, number } => {
                let client = &mut world.clients[usize::from(claim)];
                if client.stage == Stage::Holding && client.pending == number {
                    client.pending = 0;
                    client.stage = Stage::Leaving { abandon: true };
                }
            }
            Message::Gone { claim } => {
                let client = &mut world.clients[usize::from(claim)];
                if matches!(client.stage, Stage::Leaving { .. }) {
                    done(client);
                }
            }
            Message::Place { .. } | Message::Renew { .. } | Message::Withdraw { .. } => {}
        }
    }

    /// A push to a client that waits.
    fn pushed(&self, world: &mut World, claim: u8, token: u8) {
        let now = world.now;
        let client = &mut world.clients[usize::from(claim)];
        let Some((asked, counter)) = client.line else {
            // The answer that says so is on its way.
            client.mail = token;
            return;
        };
        if token <= counter && !self.is(Mutant::BelievesOldPushes) {
            return;
        }
        if self.delay > 0 {
            // Only the whole lease has a lock-delay: asking again confirms. A step of its own may do that.
            return;
        }
        let from = match self.is(Mutant::CountsFromThePush) {
            true => now,
            false => asked,
        };
        client.pending = 0;
        client.confirmed = false;
        let lasts = match self.is(Mutant::TakesTheWindowForALease) {
            true => self.lease,
            false => self.window,
        };
        self.believe(world, claim, token, from + lasts);
    }

    fn believe(&self, world: &mut World, claim: u8, token: u8, valid: u8) {
        let now = world.now;
        let client = &mut world.clients[usize::from(claim)];
        if valid <= now {
            // The answer came too late to be of use: ask again, or leave.
            return;
        }
        client.stage = Stage::Holding;
        (client.token, client.valid) = (token, valid);
        (client.line, client.mail) = (None, 0);
        world.inverted |= token <= world.highest;
        world.highest = world.highest.max(token);
    }

    /// Drops what cannot matter any more, so that what is alike is one state: what a client knew of a claim that it gives
    /// back, and answers that nobody waits for.
    fn forget(&self, world: &mut World) {
        for client in &mut world.clients {
            if matches!(client.stage, Stage::Leaving { .. }) && !self.is(Mutant::RevivesTheLost) {
                *client = Client {
                    stage: client.stage,
                    sent: client.sent,
                    last: client.last,
                    ..IDLE
                };
            }
        }
        let World {
            clients, messages, ..
        } = world;
        let client = |claim: u8| &clients[usize::from(claim)];
        messages.retain(|message| match *message {
            Message::Held { claim, number, .. }
            | Message::Waits { claim, number, .. }
            | Message::Kept { claim, number, .. }
            | Message::NotHeld { claim, number } => client(claim).pending == number,
            Message::Gone { claim } => matches!(client(claim).stage, Stage::Leaving { .. }),
            Message::Push { claim, .. } => client(claim).stage != Stage::Done,
            Message::Place { .. } | Message::Renew { .. } | Message::Withdraw { .. } => true,
        });
    }

    fn tick(&self, world: &mut World) {
        world.now += 1;
        for client in &mut world.clients {
            match client.stage {
                Stage::Holding if client.valid <= world.now => {
                    client.stage = Stage::Leaving { abandon: true };
                    if client.confirmed {
                        world.kept_until = world.kept_until.max(client.valid + self.delay);
                    }
                }
                // Whatever it sent: all of it is over with its lease.
                Stage::Leaving { .. } if world.now > client.last + self.lease + self.delay => {
                    done(client);
                }
                _ => {}
            }
        }
    }
}

/// Over: nothing of what it knew matters any more.
fn done(client: &mut Client) {
    *client = Client {
        stage: Stage::Done,
        ..IDLE
    };
}

const IDLE: Client = Client {
    stage: Stage::Idle,
    sent: 0,
    pending: 0,
    line: None,
    mail: 0,
    token: 0,
    valid: 0,
    confirmed: false,
    last: 0,
};

fn send(world: &mut World, message: Message) {
    if let Err(at) = world.messages.binary_search(&message) {
        world.messages.insert(at, message);
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
                client.line = Some((0, 1));
                if claim > 0 {
                    store.line.push(claim);
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
            messages: Vec::new(),
            highest: u8::from(self.crowded),
            inverted: false,
            kept_until: 0,
            too_early: false,
            left: false,
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
                // They are all alike: they come in the order of their numbers.
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
                    // The last request is kept for this.
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
                let at = world.messages.binary_search(&message).ok()?;
                world.messages.remove(at);
                match message {
                    Message::Place {
                        claim,
                        number,
                        sent,
                    } => self.place(&mut world, claim, number, sent),
                    Message::Renew {
                        claim,
                        number,
                        sent,
                    } => self.renew(&mut world, claim, number, sent),
                    Message::Withdraw { claim, abandon } => {
                        self.withdraw(&mut world, claim, abandon);
                    }
                    answer => self.hear(&mut world, answer),
                }
            }
            Step::Lose(message) => {
                let at = world.messages.binary_search(&message).ok()?;
                world.messages.remove(at);
            }
            Step::Ask(claim) | Step::Renew(claim) => {
                let client = &mut world.clients[usize::from(claim)];
                client.sent += 1;
                (client.pending, client.last) = (client.sent, now);
                let (number, sent) = (client.sent, now);
                if self.is(Mutant::DrawsTokensFirst) && client.stage == Stage::Idle {
                    world.store.counter += 1;
                    client.token = world.store.counter;
                }
                let renews = client.stage == Stage::Holding;
                if !renews {
                    client.stage = Stage::Asking;
                }
                send(
                    &mut world,
                    match renews {
                        true => Message::Renew {
                            claim,
                            number,
                            sent,
                        },
                        false => Message::Place {
                            claim,
                            number,
                            sent,
                        },
                    },
                );
            }
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
        world.messages.len() <= usize::from(self.flying)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody holds beside another", |_, world: &World| {
                let holds = |client: &&Client| client.stage == Stage::Holding;
                world.clients.iter().filter(holds).count() <= 1
            }),
            Property::always("tokens rise", |_, world: &World| !world.inverted),
            Property::always("a lock-delay is kept", |_, world: &World| !world.too_early),
            Property::always("nothing is left", |_, world: &World| !world.left),
            Property::always("nobody passes the line", |_, world: &World| !world.passed),
            Property::sometimes("everybody has held", |_, world: &World| {
                usize::from(world.highest) >= world.clients.len()
            }),
            Property::sometimes("a pushed grant is believed", |_, world: &World| {
                let pushed = |c: &Client| c.stage == Stage::Holding && !c.confirmed;
                world.clients.iter().any(pushed)
            }),
        ]
    }
}
