//! What the model consists of: its size, its faults, the messages, the clients and the store.

use std::collections::BTreeSet;

/// How many replicas there are.
pub(super) const REPLICAS: usize = 2;

/// The maximum number of clients.
pub(super) const CLIENTS: usize = 3;

/// The size of the search, and the fault that is built in.
#[derive(Clone, Debug)]
pub struct Http {
    /// How many clients there are, each with one claim; at most three.
    pub clients: u8,
    /// How many ticks there are.
    pub ticks: u8,
    /// The whole lease, after a renewal.
    pub ttl: u8,
    /// The claim window: how long a first grant and a pushed one last.
    pub window: u8,
    /// How many requests each client may send before it leaves.
    pub requests: [u8; CLIENTS],
    /// How many additional releases each client may send.
    pub leaves: u8,
    /// How many messages may be in flight at once.
    pub in_flight: u8,
    /// How many requests may arrive twice.
    pub repeats: u8,
    /// Whether the search begins with one client that holds and all others queued, instead of with idle clients.
    pub crowded: bool,
    /// Whether another process continues with a hold after its end. It renews, and believes only from the answer on.
    pub detached: bool,
    /// The fault that is built in, if any.
    pub mutant: Option<Mutant>,
}

/// A fault that can be built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The lease counts from the arrival of the answer.
    CountsFromTheAnswer,
    /// A repeated request for the lock cuts a renewed lease to a claim window.
    PlaceShortens,
    /// A renewal prolongs the claim's grant whatever its token.
    RenewsByIdAlone,
    /// A push that no client received is given back by the claim alone, whatever the grant's token.
    GivesBackWithoutToken,
    /// A replica withdraws a claim that no longer polls it.
    GatewayWithdrawsTheSilent,
    /// The first grant lasts the whole lease.
    FirstGrantIsWhole,
    /// A replica renews a pushed grant by itself.
    GatewayConfirms,
    /// A client uses the id again after its release.
    ReusesTheId,
    /// A client believes until its release is answered.
    BelievesWhileLeaving,
    /// A client believes a first grant for the whole lease.
    BelievesTheWholeLease,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::CountsFromTheAnswer,
        Self::PlaceShortens,
        Self::RenewsByIdAlone,
        Self::GivesBackWithoutToken,
        Self::GatewayWithdrawsTheSilent,
        Self::FirstGrantIsWhole,
        Self::GatewayConfirms,
        Self::ReusesTheId,
        Self::BelievesWhileLeaving,
        Self::BelievesTheWholeLease,
    ];
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// To take the lock, to join the queue, or to continue waiting.
    Place,
    /// To renew.
    Renew,
    /// To release, or to leave the queue.
    Withdraw,
}

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The claim holds by this token.
    Held(u8),
    /// The claim is queued.
    Waits,
    /// The lease is renewed.
    Kept,
    /// The claim does not hold by the token that the renewal named.
    NotHeld,
    /// The store has forgotten the claim.
    Gone,
}

/// A message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// A request, through a replica to the store. A delay on either part of the way has the same effect.
    Request {
        /// The kind of request.
        kind: Kind,
        /// The claim.
        claim: u8,
        /// The client's number of the request; 0 if no client waits for the answer.
        number: u8,
        /// The replica.
        replica: u8,
        /// The token that a renewal names.
        token: u8,
    },
    /// From a replica to the store: a push for which no poll was open.
    GiveBack {
        /// The claim.
        claim: u8,
        /// The token of the push.
        token: u8,
    },
    /// From the store to the replica that asked last: the claim holds.
    Push {
        /// The claim.
        claim: u8,
        /// The token.
        token: u8,
        /// The replica.
        replica: u8,
    },
    /// From a replica to a client.
    Answer {
        /// The answer.
        answer: Answer,
        /// The claim.
        claim: u8,
        /// The number of the request.
        number: u8,
    },
}

/// The stage of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It has sent nothing.
    Idle,
    /// It has sent a request, and has no answer or is queued.
    Asking,
    /// It holds until its validity ends.
    Holding,
    /// Its validity has ended, and another process may continue with the claim.
    Elsewhere,
    /// It withdraws until the withdrawal is answered.
    Leaving,
    /// Its withdrawal was answered.
    Done,
}

/// What a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its stage.
    pub stage: Stage,
    /// How many requests it has sent.
    pub(super) used: u8,
    /// The request whose answer it waits for; 0 for none.
    pub(super) pending: u8,
    /// When it sent that request.
    pub(super) sent: u8,
    /// Its token.
    pub token: u8,
    /// When its validity ends.
    pub valid: u8,
    /// It uses its id for the second time.
    pub(super) again: bool,
}

/// The holder at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The claim.
    pub claim: u8,
    /// When its lease ends.
    pub until: u8,
    /// The token.
    pub token: u8,
    /// Whether a request of the claim has found the grant. A push alone does not show that a client received it.
    pub(super) confirmed: bool,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The claim.
    pub claim: u8,
    /// Until when it keeps its place.
    pub until: u8,
    /// The replica through which it asked last.
    pub(super) replica: u8,
}

/// An open poll: the request, and the counter of tokens when it arrived.
pub(super) type Poll = Option<(u8, u8)>;

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The time.
    pub now: u8,
    pub(super) clients: Vec<Client>,
    pub(super) holder: Option<Holder>,
    /// The claims that wait, in order.
    pub(super) queue: Vec<Waiter>,
    /// The highest token that was drawn.
    pub(super) counter: u8,
    pub(super) polls: [[Poll; CLIENTS]; REPLICAS],
    /// The claims that have asked each replica. Kept only for the fault that needs it.
    pub(super) seen: [u8; REPLICAS],
    /// The messages in flight.
    pub(super) messages: BTreeSet<Message>,
    /// How many requests may still arrive twice.
    pub(super) repeats: u8,
    /// The highest token that was believed, and the client that believed it.
    pub(super) highest: (u8, u8),
    /// A client has believed in a lower token after that one.
    pub(super) inverted: bool,
    /// A claim was granted the lock after its withdrawal was answered.
    pub(super) granted_again: bool,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A message arrives.
    Deliver(Message),
    /// A request arrives, and will arrive once more.
    Repeat(Message),
    /// A message never arrives.
    Lose(Message),
    /// A client sends a request of this kind to this replica.
    Send(Kind, u8, u8),
    /// A client decides to release, or gives up waiting.
    Leave(u8),
    /// A replica ends a claim's poll without a grant.
    EndPoll(u8, u8),
    /// A replica withdraws a claim that does not poll.
    WithdrawSilent(u8, u8),
}

impl Http {
    /// Whether this fault was built in.
    pub(super) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

impl World {
    pub(super) fn client(&mut self, claim: u8) -> &mut Client {
        &mut self.clients[usize::from(claim)]
    }

    pub(super) fn poll(&mut self, replica: u8, claim: u8) -> &mut Poll {
        &mut self.polls[usize::from(replica)][usize::from(claim)]
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: Message) {
        self.messages.insert(message);
    }
}

/// A client that has not sent a request.
pub(super) const IDLE: Client = Client {
    stage: Stage::Idle,
    used: 0,
    pending: 0,
    sent: 0,
    token: 0,
    valid: 0,
    again: false,
};
