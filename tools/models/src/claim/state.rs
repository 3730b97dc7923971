//! What the model consists of: its size, its faults, the messages, the clients and the store.

use std::collections::BTreeSet;

/// The size of the search, and the fault that is built in.
#[derive(Clone, Debug)]
pub struct Claims {
    /// How many clients there are, each with one claim.
    pub clients: u8,
    /// How many ticks there are.
    pub ticks: u8,
    /// The lease.
    pub lease: u8,
    /// The claim window: how long a lock that was handed over waits for its new holder to confirm.
    pub window: u8,
    /// The lock-delay.
    pub delay: u8,
    /// How many requests each client may send.
    pub requests: u8,
    /// How many messages may be in flight at once.
    pub in_flight: u8,
    /// Whether the search begins with one client that holds and all others queued, instead of with idle clients.
    pub crowded: bool,
    /// The fault that is built in, if any.
    pub mutant: Option<Mutant>,
}

/// A fault that can be built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Validity counts from the arrival of the answer, not from the request.
    CountsFromTheAnswer,
    /// The validity of a pushed grant counts from the arrival of the push.
    CountsFromThePush,
    /// A client believes a push with an old token.
    BelievesOldPushes,
    /// A release frees the lock of any holder.
    ReleasesAnyHolder,
    /// A client believes a pushed grant for a lease, while the store gives it a claim window.
    TakesTheWindowForTheLease,
    /// A late answer to a renewal revives a hold that was lost.
    RevivesLostHolds,
    /// The token is drawn before the lock is won.
    DrawsTokensBeforeWinning,
    /// A client that gives up does not leave the queue.
    NeverLeavesTheQueue,
    /// An abandoned lock is free without its lock-delay.
    IgnoresTheDelay,
    /// A free lock is granted past the queue.
    IgnoresTheQueue,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::CountsFromTheAnswer,
        Self::CountsFromThePush,
        Self::BelievesOldPushes,
        Self::ReleasesAnyHolder,
        Self::TakesTheWindowForTheLease,
        Self::RevivesLostHolds,
        Self::DrawsTokensBeforeWinning,
        Self::NeverLeavesTheQueue,
        Self::IgnoresTheDelay,
        Self::IgnoresTheQueue,
    ];
}

/// A message in flight. `number` is the number of the request, and `sent` when the request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// To the store: a request for the lock, which is granted or queued.
    Place {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the request was sent.
        sent: u8,
    },
    /// To the store: a renewal.
    Renew {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the request was sent.
        sent: u8,
    },
    /// To the store: a release, an abandonment, or leaving the queue.
    Withdraw {
        /// The claim.
        claim: u8,
        /// Whether the lock was lost before.
        abandon: bool,
    },
    /// To a client: the claim holds.
    Held {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the request was sent.
        sent: u8,
        /// The token.
        token: u8,
    },
    /// To a client: the claim is queued.
    Waits {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the request was sent.
        sent: u8,
        /// The counter of tokens at the store.
        counter: u8,
    },
    /// To a client, without a request: the claim holds.
    Push {
        /// The claim.
        claim: u8,
        /// The token.
        token: u8,
    },
    /// To a client: the lease is renewed.
    Kept {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the request was sent.
        sent: u8,
    },
    /// To a client: the claim does not hold.
    NotHeld {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
    },
    /// To a client: the store has forgotten the claim.
    Gone {
        /// The claim.
        claim: u8,
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
    /// It withdraws its claim until the store confirms that.
    Leaving {
        /// Whether it has lost the lock.
        abandon: bool,
    },
    /// Its claim has ended.
    Done,
}

/// What a client knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its stage.
    pub stage: Stage,
    /// How many requests it has sent.
    pub sent: u8,
    /// The request whose answer it waits for; 0 for none.
    pub(super) pending: u8,
    /// From the newest answer that it is queued: when the request was sent, and the counter of tokens.
    pub(super) queued: Option<(u8, u8)>,
    /// The token of a push that arrived before such an answer; 0 for none.
    pub(super) early_push: u8,
    /// Its token.
    pub token: u8,
    /// When its validity ends.
    pub valid: u8,
    /// Whether the store has confirmed its whole lease.
    pub(super) confirmed: bool,
    /// When its last request was sent.
    pub(super) last: u8,
}

/// The state of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    /// The holder, the end of its lease, and its token.
    pub(super) holder: Option<(u8, u8, u8)>,
    /// The claims that wait, in order.
    pub(super) queue: Vec<u8>,
    pub(super) counter: u8,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The time.
    pub now: u8,
    pub(super) clients: Vec<Client>,
    pub(super) store: Store,
    /// The messages in flight.
    pub(super) messages: BTreeSet<Message>,
    /// The highest token that a client has held with.
    pub(super) highest: u8,
    /// A later client has held with a lower token.
    pub(super) inverted: bool,
    /// Until when the lock-delay keeps a lost lock from other clients.
    pub(super) kept_until: u8,
    /// The lock was granted before the end of the lock-delay.
    pub(super) too_early: bool,
    /// The store has confirmed a withdrawal, but the claim is still queued.
    pub(super) leftover: bool,
    /// The lock was granted past the queue.
    pub(super) passed: bool,
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
    /// A client sends a request, or repeats it.
    Ask(u8),
    /// A holder renews.
    Renew(u8),
    /// A client decides to release, or gives up waiting.
    Leave(u8),
    /// A client sends its withdrawal, or repeats it.
    Withdraw(u8),
}

impl Claims {
    /// Whether this fault was built in.
    pub(super) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }
}

/// Ends a client. Its knowledge no longer matters.
pub(super) fn done(client: &mut Client) {
    *client = Client {
        stage: Stage::Done,
        ..IDLE
    };
}

/// A client that has not sent a request.
pub(super) const IDLE: Client = Client {
    stage: Stage::Idle,
    sent: 0,
    pending: 0,
    queued: None,
    early_push: 0,
    token: 0,
    valid: 0,
    confirmed: false,
    last: 0,
};

/// Sends a message.
pub(super) fn send(world: &mut World, message: Message) {
    world.messages.insert(message);
}
