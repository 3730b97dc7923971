//! The steps of the store.

use super::state::{Claims, Message, Mutant, World, send};

impl Claims {
    /// Grants the lock to a claim for a time.
    fn hold(&self, world: &mut World, claim: u8, lasts: u8) -> u8 {
        let token = if self.is(Mutant::DrawsTokensBeforeWinning) {
            world.clients[usize::from(claim)].token
        } else {
            world.store.counter += 1;
            world.store.counter
        };
        world.too_early |= world.now < world.kept_until;
        world.store.holder = Some((claim, world.now + lasts, token));
        token
    }

    /// Removes a holder whose lease has ended, then serves the queue. Returns the token if the claim `own` is granted.
    fn advance(&self, world: &mut World, own: Option<u8>) -> Option<u8> {
        if world
            .store
            .holder
            .is_some_and(|(_, until, _)| until <= world.now)
        {
            world.store.holder = None;
        }
        if world.store.holder.is_some() || world.store.queue.is_empty() {
            return None;
        }
        // Removed from the queue before the push is sent.
        let claim = world.store.queue.remove(0);
        if Some(claim) == own {
            return Some(self.hold(world, claim, self.lease + self.delay));
        }
        // The grant ends after the claim window unless the client confirms. It has no lock-delay until then.
        let token = self.hold(world, claim, self.window);
        send(world, Message::Push { claim, token });
        None
    }

    /// Answers a request for the lock: grants it, prolongs it, or queues the claim.
    pub(super) fn place(&self, world: &mut World, claim: u8, number: u8, sent: u8) {
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
        let held = if over && (world.store.queue.is_empty() || self.is(Mutant::IgnoresTheQueue)) {
            world.passed |= world.store.queue.iter().any(|other| *other != claim);
            Some(self.hold(world, claim, self.lease + self.delay))
        } else {
            if !world.store.queue.contains(&claim) {
                world.store.queue.push(claim);
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

    /// Answers a renewal.
    pub(super) fn renew(&self, world: &mut World, claim: u8, number: u8, sent: u8) {
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

    /// Releases, abandons, or leaves the queue.
    pub(super) fn withdraw(&self, world: &mut World, claim: u8, abandon: bool) {
        let any = self.is(Mutant::ReleasesAnyHolder);
        if let Some((holder, until, token)) = world.store.holder
            && (any || holder == claim)
        {
            world.store.holder = match abandon && !self.is(Mutant::IgnoresTheDelay) {
                true => Some((holder, until.min(world.now + self.delay), token)),
                false => None,
            };
        }
        if !self.is(Mutant::NeverLeavesTheQueue) {
            world.store.queue.retain(|other| *other != claim);
        }
        world.leftover |= world.store.queue.contains(&claim);
        self.advance(world, None);
        send(world, Message::Gone { claim });
    }
}
