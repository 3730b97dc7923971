//! The steps of the store, and of its replicas.

use super::state::{Answer, Holder, Http, Kind, Message, Mutant, Stage, Waiter, World};

impl Http {
    /// How long a first grant lasts.
    fn first_lease(&self) -> u8 {
        match self.is(Mutant::FirstGrantIsWhole) {
            true => self.ttl,
            false => self.window,
        }
    }

    /// Grants the lock for a time. Returns the token.
    fn grant(&self, world: &mut World, claim: u8, lasts: u8, confirmed: bool) -> u8 {
        world.counter += 1;
        world.holder = Some(Holder {
            claim,
            until: world.now + lasts,
            token: world.counter,
            confirmed,
        });
        world.granted_again |= world.client(claim).stage == Stage::Done;
        world.counter
    }

    /// Ends what is over, then serves the queue. Returns the token if the claim `own` is granted.
    fn advance(&self, world: &mut World, own: Option<u8>) -> Option<u8> {
        let now = world.now;
        if world.holder.is_some_and(|holder| holder.until <= now) {
            world.holder = None;
        }
        world
            .queue
            .retain(|waiter| waiter.until > now || Some(waiter.claim) == own);
        if world.holder.is_some() || world.queue.is_empty() {
            return None;
        }
        let Waiter { claim, replica, .. } = world.queue.remove(0);
        if Some(claim) == own {
            return Some(self.grant(world, claim, self.first_lease(), true));
        }
        let token = self.grant(world, claim, self.window, false);
        world.send(Message::Push {
            claim,
            token,
            replica,
        });
        None
    }

    /// A request arrives at the store.
    pub(super) fn ask(
        &self,
        world: &mut World,
        kind: Kind,
        (claim, number): (u8, u8),
        replica: u8,
        token: u8,
    ) {
        let own = (kind == Kind::Place).then_some(claim);
        self.advance(world, own);
        let answer = match kind {
            Kind::Place => self.place(world, (claim, number), replica),
            Kind::Renew => Some(self.renew(world, claim, token)),
            Kind::Withdraw => {
                world.holder = world.holder.filter(|holder| holder.claim != claim);
                world.queue.retain(|waiter| waiter.claim != claim);
                Some(Answer::Gone)
            }
        };
        self.advance(world, None);
        if let Some(answer) = answer
            && number > 0
        {
            world.send(Message::Answer {
                answer,
                claim,
                number,
            });
        }
    }

    /// Grants the lock, keeps the claim's grant, or queues the claim; then its poll stays open.
    fn place(&self, world: &mut World, (claim, number): (u8, u8), replica: u8) -> Option<Answer> {
        let asked = world.now + self.first_lease();
        let shortens = self.is(Mutant::PlaceShortens);
        if let Some(holder) = world.holder.as_mut().filter(|holder| holder.claim == claim) {
            holder.until = match shortens {
                true => asked,
                false => holder.until.max(asked),
            };
            holder.confirmed = true;
            return Some(Answer::Held(holder.token));
        }
        let here = Waiter {
            claim,
            until: world.now + 2 * self.window,
            replica,
        };
        match world.queue.iter_mut().find(|waiter| waiter.claim == claim) {
            Some(waiter) => *waiter = here,
            None => world.queue.push(here),
        }
        let token = self.advance(world, Some(claim));
        if token.is_none() {
            *world.poll(replica, claim) = Some((number, world.counter));
        }
        token.map(Answer::Held)
    }

    fn renew(&self, world: &mut World, claim: u8, token: u8) -> Answer {
        let any = self.is(Mutant::RenewsByIdAlone);
        let until = world.now + self.ttl;
        let is_this =
            |holder: &&mut Holder| holder.claim == claim && (any || holder.token == token);
        match world.holder.as_mut().filter(is_this) {
            Some(holder) => {
                holder.until = until;
                holder.confirmed = true;
                Answer::Kept
            }
            None => Answer::NotHeld,
        }
    }

    /// A give-back arrives at the store.
    pub(super) fn take_back(&self, world: &mut World, claim: u8, token: u8) {
        self.advance(world, None);
        let any = self.is(Mutant::GivesBackWithoutToken);
        let is_this = |holder: &Holder| {
            holder.claim == claim && !holder.confirmed && (any || holder.token == token)
        };
        world.holder = world.holder.filter(|holder| !is_this(holder));
        self.advance(world, None);
    }

    /// A push arrives at a replica: it answers the claim's poll, or is given back.
    pub(super) fn hear_push(&self, world: &mut World, claim: u8, token: u8, replica: u8) {
        let Some((number, _)) = world
            .poll(replica, claim)
            .take_if(|(_, counter)| token > *counter)
        else {
            return world.send(Message::GiveBack { claim, token });
        };
        if number > 0 {
            world.send(Message::Answer {
                answer: Answer::Held(token),
                claim,
                number,
            });
        }
        if self.is(Mutant::GatewayConfirms) {
            world.send(Message::Request {
                kind: Kind::Renew,
                claim,
                number: 0,
                replica,
                token,
            });
        }
    }
}
