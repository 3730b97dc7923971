//! What the model consists of: its size, its faults, the messages, the clients and the store.

use std::collections::BTreeSet;

/// How many replicas there are.
pub(super) const REPLICAS: usize = 2;

/// The most clients.
pub(super) const CLIENTS: usize = 3;

/// The size of the search, and the fault that is built in.
#[derive(Clone, Debug)]
pub struct Http {
    /// How many clients there are, each with one claim; at most three.
    pub clients: u8,
    /// How many ticks there are.
    pub ticks: u8,
    /// The whole lease, which a renewal brings.
    pub ttl: u8,
    /// The claim window: how long a first grant and a pushed one last.
    pub window: u8,
    /// How many requests each client may send before it leaves.
    pub requests: [u8; CLIENTS],
    /// How many releases each client may send beyond that.
    pub leaves: u8,
    /// How many messages may be in flight at once.
    pub in_flight: u8,
    /// How many requests may arrive twice.
    pub repeats: u8,
    /// Whether the search begins with one client that holds and all others queued, instead of with idle clients.
    pub crowded: bool,
    /// Whether another process goes on with a hold after its end: it renews, and believes only from the answer.
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
    /// A push that nobody heard is given back by the claim alone, whatever the grant's token.
    GivesBackWithoutToken,
    /// A replica withdraws a claim that does not ask it any more.
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
    /// To take the lock, to join the queue, or to go on waiting.
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
    /// A request, by way of a replica to the store: late on either way is late.
    Request {
        /// What for.
        kind: Kind,
        /// The claim.
        claim: u8,
        /// The client's number of it; 0 if nobody waits for the answer.
        number: u8,
        /// The replica.
        replica: u8,
        /// The token that a renewal names.
        token: u8,
    },
    /// From a replica to the store: a push that no poll waited for.
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
        /// What it says.
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
    /// Its validity has ended, and another process may go on with the claim.
    Elsewhere,
    /// It withdraws until that is answered.
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
    /// When it sent that.
    pub(super) sent: u8,
    /// Its token.
    pub token: u8,
    /// When its validity ends.
    pub valid: u8,
    /// It uses its id for the second time.
    pub(super) again: bool,
}

/// Who holds at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The claim.
    pub claim: u8,
    /// When its lease ends.
    pub until: u8,
    /// The token.
    pub token: u8,
    /// Whether a request of the claim has found the grant; a push alone does not say that it was heard.
    pub(super) confirmed: bool,
}

/// A place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The claim.
    pub claim: u8,
    /// Until when it keeps its place.
    pub until: u8,
    /// Through which replica it asked last.
    pub(super) replica: u8,
}

/// An open poll: the request, and the counter of tokens when it came.
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
    /// For each replica the claims that have asked it. Kept only for the fault that needs it.
    pub(super) seen: [u8; REPLICAS],
    /// The messages in flight.
    pub(super) messages: BTreeSet<Message>,
    /// How many requests may still arrive twice.
    pub(super) repeats: u8,
    /// The highest token that was believed, and by whom.
    pub(super) highest: (u8, u8),
    /// A client has believed in a lower token after that.
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

    /// Puts a message on its way.
    pub(super) fn send(&mut self, message: Message) {
        self.messages.insert(message);
    }
}

/// A client that has not asked.
pub(super) const IDLE: Client = Client {
    stage: Stage::Idle,
    used: 0,
    pending: 0,
    sent: 0,
    token: 0,
    valid: 0,
    again: false,
};
