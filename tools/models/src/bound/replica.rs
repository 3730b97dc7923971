//! How messages are received: by the replica, by the store, and by the clients.

use super::state::{Bound, Client, Entry, GONE, Kind, Message, Mutant, Stage, World};

impl Bound {
    pub(super) fn deliver(&self, world: &mut World, message: Message) {
        match message {
            Message::Ask {
                kind,
                claim,
                number,
            } if world.lives => self.asked(world, kind, claim, number),
            Message::Release { claim } if world.lives => {
                world.entry(claim).until = 0;
                match self.is(Mutant::DeletesOnce) {
                    true => world.send(Message::Delete { claim }),
                    false => world.entry(claim).ending = true,
                }
            }
            Message::Call {
                kind,
                claim,
                number,
                received,
            } => self.call(world, kind, (claim, number), received),
            Message::Called {
                kind,
                claim,
                number,
                received,
                holds,
            } if world.lives => {
                // A client was told only what is in the table. A claim that is no longer in the table is not reported
                // as held.
                let told = received + self.lease(kind);
                let lease = match holds && world.entry(claim).until >= told {
                    true => self.lease(kind),
                    false => 0,
                };
                world.send(Message::Answer {
                    claim,
                    number,
                    lease,
                });
            }
            Message::Delete { claim } => {
                world.keys.retain(|key| *key != claim);
                if world.lives {
                    world.send(Message::Deleted { claim });
                }
            }
            Message::Deleted { claim } => {
                let entry = world.entry(claim);
                (entry.ending, entry.ended) = (false, true);
            }
            Message::Answer {
                claim,
                number,
                lease,
            } => self.hear(world, claim, number, lease),
            // The replica is dead.
            Message::Ask { .. } | Message::Release { .. } | Message::Called { .. } => {}
        }
    }

    /// A request arrives at the replica. The claim enters the table before the replica asks the store.
    fn asked(&self, world: &mut World, kind: Kind, claim: u8, number: u8) {
        let now = world.now;
        let lease = self.lease(kind);
        let Entry {
            until,
            ending,
            ended,
        } = *world.entry(claim);
        // A claim that was ended here starts again with another id. A renewal of an unknown claim is lost.
        let refused = ending
            || (ended && !self.is(Mutant::PlacesAgainWhatItEnded))
            || (kind == Kind::Renew && until == 0);
        let answer = |lease| Message::Answer {
            claim,
            number,
            lease,
        };
        if refused {
            return world.send(answer(0));
        }
        world.entry(claim).until = until.max(now + lease);
        if self.is(Mutant::AnswersBeforeTheStore) && kind == Kind::Renew {
            world.send(answer(lease));
        }
        world.send(Message::Call {
            kind,
            claim,
            number,
            received: now,
        });
    }

    /// A call arrives at the store.
    fn call(&self, world: &mut World, kind: Kind, (claim, number): (u8, u8), received: u8) {
        let until = world.now + self.session;
        match kind {
            // The late call of a dead replica makes no new session.
            Kind::Place if world.session == 0 && !world.lives => {}
            Kind::Place => {
                world.session = world.session.max(until);
                if !world.keys.contains(&claim) {
                    world.keys.push(claim);
                }
            }
            Kind::Renew if world.session > 0 => world.session = until,
            Kind::Renew => {}
        }
        let holds = world.session > 0 && world.keys.first() == Some(&claim);
        if world.lives {
            world.send(Message::Called {
                kind,
                claim,
                number,
                received,
                holds,
            });
        }
    }

    /// An answer arrives at a client.
    fn hear(&self, world: &mut World, claim: u8, number: u8, lease: u8) {
        let now = world.now;
        let from_answer = self.is(Mutant::CountsFromTheAnswer);
        let client = world.client(claim);
        if client.pending != number || !matches!(client.stage, Stage::Asking | Stage::Holding) {
            return;
        }
        client.pending = 0;
        let from = if from_answer { now } else { client.sent };
        if lease == 0 {
            if client.stage == Stage::Holding {
                *client = GONE;
            }
        } else if from + lease > now {
            client.stage = Stage::Holding;
            client.valid = client.valid.max(from + lease);
        }
    }

    /// A client sends a request.
    pub(super) fn request(&self, world: &mut World, kind: Kind, claim: u8) {
        let now = world.now;
        let client = world.client(claim);
        client.used += 1;
        let number = client.used;
        *client = Client {
            pending: number,
            sent: now,
            stage: match kind {
                Kind::Place => Stage::Asking,
                Kind::Renew => client.stage,
            },
            ..*client
        };
        world.send(Message::Ask {
            kind,
            claim,
            number,
        });
    }

    /// Time passes.
    pub(super) fn tick(&self, world: &mut World) {
        world.now += 1;
        if world.session <= world.now {
            world.session = 0;
            world.keys.clear();
        }
        for client in &mut world.clients {
            if client.stage == Stage::Holding && client.valid <= world.now {
                *client = GONE;
            }
        }
    }

    /// The replica dies. Its knowledge and the messages to it are lost.
    pub(super) fn die(&self, world: &mut World) {
        world.lives = false;
        world.table = Default::default();
        world.messages.retain(|message| {
            matches!(
                message,
                Message::Answer { .. } | Message::Call { .. } | Message::Delete { .. }
            )
        });
    }
}
