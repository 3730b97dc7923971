//! The steps of a client.

use super::state::{Claims, Client, IDLE, Message, Mutant, Stage, World, done, send};

impl Claims {
    /// A client receives a message.
    pub(super) fn hear(&self, world: &mut World, message: Message) {
        match message {
            Message::Held {
                claim,
                number,
                sent,
                token,
            } => self.granted(world, claim, number, (sent, token)),
            Message::Waits {
                claim,
                number,
                sent,
                counter,
            } => self.queued(world, claim, number, (sent, counter)),
            Message::Push { claim, token } => match world.clients[usize::from(claim)].stage {
                Stage::Asking => self.pushed(world, claim, token),
                Stage::Holding => {}
                // The client no longer wants the lock. It releases the lock, or abandons it if it has already lost it.
                stage => {
                    let abandon = stage == Stage::Leaving { abandon: true };
                    send(world, Message::Withdraw { claim, abandon });
                }
            },
            Message::Kept {
                claim,
                number,
                sent,
            } => self.renewed(world, claim, number, sent),
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

    /// The answer to a request: the claim holds.
    fn granted(&self, world: &mut World, claim: u8, number: u8, (sent, token): (u8, u8)) {
        let now = world.now;
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

    /// The answer to a request: the claim is queued.
    fn queued(&self, world: &mut World, claim: u8, number: u8, (sent, counter): (u8, u8)) {
        let client = &mut world.clients[usize::from(claim)];
        if client.stage != Stage::Asking || client.pending != number {
            return;
        }
        client.pending = 0;
        client.queued = Some((sent, counter));
        let push = std::mem::take(&mut client.early_push);
        if push > 0 {
            self.pushed(world, claim, push);
        }
    }

    /// The answer to a renewal: the claim still holds.
    fn renewed(&self, world: &mut World, claim: u8, number: u8, sent: u8) {
        let client = &mut world.clients[usize::from(claim)];
        let revives =
            self.is(Mutant::RevivesLostHolds) && client.stage == Stage::Leaving { abandon: true };
        if client.pending == number && (client.stage == Stage::Holding || revives) {
            client.pending = 0;
            client.stage = Stage::Holding;
            client.confirmed = true;
            client.valid = client.valid.max(sent + self.lease);
        }
    }

    /// A push to a client that waits.
    fn pushed(&self, world: &mut World, claim: u8, token: u8) {
        let now = world.now;
        let client = &mut world.clients[usize::from(claim)];
        let Some((asked, counter)) = client.queued else {
            // The answer that the claim is queued is still in flight.
            client.early_push = token;
            return;
        };
        if token <= counter && !self.is(Mutant::BelievesOldPushes) {
            return;
        }
        if self.delay > 0 {
            // Only a confirmed lease has a lock-delay. The client may send a request, which confirms.
            return;
        }
        let from = match self.is(Mutant::CountsFromThePush) {
            true => now,
            false => asked,
        };
        client.pending = 0;
        client.confirmed = false;
        let lasts = match self.is(Mutant::TakesTheWindowForTheLease) {
            true => self.lease,
            false => self.window,
        };
        self.believe(world, claim, token, from + lasts);
    }

    /// The client holds from now on, unless the validity has already ended.
    fn believe(&self, world: &mut World, claim: u8, token: u8, valid: u8) {
        let now = world.now;
        let client = &mut world.clients[usize::from(claim)];
        if valid <= now {
            // The answer came too late. The client may send another request, or give up.
            return;
        }
        client.stage = Stage::Holding;
        (client.token, client.valid) = (token, valid);
        (client.queued, client.early_push) = (None, 0);
        world.inverted |= token <= world.highest;
        world.highest = world.highest.max(token);
    }

    /// Drops what no longer matters, so that equal situations are one state: what a client knew of a claim that it
    /// withdraws, and answers that no client waits for.
    pub(super) fn forget(&self, world: &mut World) {
        for client in &mut world.clients {
            if matches!(client.stage, Stage::Leaving { .. }) && !self.is(Mutant::RevivesLostHolds) {
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

    /// Time passes.
    pub(super) fn tick(&self, world: &mut World) {
        world.now += 1;
        for client in &mut world.clients {
            match client.stage {
                Stage::Holding if client.valid <= world.now => {
                    client.stage = Stage::Leaving { abandon: true };
                    if client.confirmed {
                        world.kept_until = world.kept_until.max(client.valid + self.delay);
                    }
                }
                // All grants to this client have ended by now.
                Stage::Leaving { .. } if world.now > client.last + self.lease + self.delay => {
                    done(client);
                }
                _ => {}
            }
        }
    }
}
