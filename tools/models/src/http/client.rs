//! The steps of a client.

use super::state::{Answer, Client, Http, IDLE, Kind, Message, Mutant, Stage, World};

impl Http {
    /// A client sends a request.
    pub(super) fn request(&self, world: &mut World, kind: Kind, claim: u8, replica: u8) {
        let now = world.now;
        let client = world.client(claim);
        client.used += 1;
        // The two uses of one id have different numbers.
        let number = client.used + if client.again { 8 } else { 0 };
        (client.pending, client.sent) = (number, now);
        if kind == Kind::Place {
            client.stage = Stage::Asking;
        }
        let token = match kind {
            Kind::Renew => client.token,
            Kind::Place | Kind::Withdraw => 0,
        };
        world.send(Message::Request {
            kind,
            claim,
            number,
            replica,
            token,
        });
    }

    /// A client decides to release, or gives up waiting: its belief ends before the release is sent.
    pub(super) fn leave(&self, client: &mut Client) {
        client.stage = Stage::Leaving;
        if !self.is(Mutant::BelievesWhileLeaving) {
            (client.pending, client.valid) = (0, 0);
        }
    }

    /// An answer arrives at a client.
    pub(super) fn hear(&self, world: &mut World, answer: Answer, claim: u8, number: u8) {
        let now = world.now;
        let from_answer = self.is(Mutant::CountsFromTheAnswer);
        let client = world.client(claim);
        if client.pending != number {
            return;
        }
        let from = if from_answer { now } else { client.sent };
        match (answer, client.stage) {
            (Answer::Held(token), Stage::Asking) => {
                client.pending = 0;
                let lease = match self.is(Mutant::BelievesTheWholeLease) {
                    true => self.ttl,
                    false => self.window,
                };
                if from + lease > now {
                    (client.token, client.valid) = (token, from + lease);
                    believe(world, claim);
                }
            }
            (Answer::Waits, Stage::Asking) => client.pending = 0,
            (Answer::Kept, Stage::Holding | Stage::Elsewhere) => {
                client.pending = 0;
                if from + self.ttl > now {
                    client.valid = client.valid.max(from + self.ttl);
                    believe(world, claim);
                }
            }
            (Answer::NotHeld, Stage::Holding | Stage::Elsewhere) => {
                client.pending = 0;
                client.stage = Stage::Leaving;
            }
            (Answer::Gone, Stage::Leaving) => {
                let again = self.is(Mutant::ReusesTheId) && !client.again;
                *client = match again {
                    true => Client {
                        used: client.used.saturating_sub(2) + 1,
                        again,
                        ..IDLE
                    },
                    false => Client {
                        stage: Stage::Done,
                        again: client.again,
                        ..IDLE
                    },
                };
            }
            _ => {}
        }
    }

    /// Time passes.
    pub(super) fn tick(&self, world: &mut World) {
        world.now += 1;
        for client in &mut world.clients {
            if client.stage != Stage::Holding || client.valid > world.now {
                continue;
            }
            client.valid = 0;
            if self.detached {
                client.stage = Stage::Elsewhere;
            } else {
                client.stage = Stage::Leaving;
                (client.pending, client.token) = (0, 0);
            }
        }
    }

    /// Drops what no longer matters, so that equal situations are one state: the knowledge of a client that leaves,
    /// answers and numbers of requests that no client waits for, and what has ended at the store.
    pub(super) fn forget(&self, world: &mut World) {
        let World {
            clients,
            messages,
            polls,
            ..
        } = world;
        for client in clients.iter_mut() {
            if client.stage == Stage::Leaving && !self.is(Mutant::BelievesWhileLeaving) {
                (client.token, client.valid) = (0, 0);
            }
            if client.pending == 0 {
                client.sent = 0;
            }
        }
        let is_over = |claim: u8, number: u8| clients[usize::from(claim)].pending != number;
        let matters = |mut message| {
            match &mut message {
                Message::Answer { claim, number, .. } if is_over(*claim, *number) => return None,
                Message::Request { claim, number, .. } if is_over(*claim, *number) => *number = 0,
                _ => {}
            }
            Some(message)
        };
        *messages = std::mem::take(messages)
            .into_iter()
            .filter_map(matters)
            .collect();
        for poll in polls {
            for (claim, poll) in (0..).zip(poll.iter_mut()) {
                if let Some((number, counter)) = poll
                    && *number > 0
                    && is_over(claim, *number)
                {
                    (*number, *counter) = (0, 0);
                }
            }
        }
        let now = world.now;
        world.queue.retain(|waiter| waiter.until > now);
        world.holder = world.holder.filter(|holder| holder.until > now);
        if !self.is(Mutant::GatewayWithdrawsTheSilent) {
            world.seen = Default::default();
        }
    }
}

/// The client holds from now on.
fn believe(world: &mut World, claim: u8) {
    let client = world.client(claim);
    client.stage = Stage::Holding;
    let token = client.token;
    let (highest, by) = world.highest;
    world.inverted |= token < highest || (token == highest && by != claim);
    world.highest = (token.max(highest), claim);
}
