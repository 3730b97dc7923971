//! What the model consists of: its size, its faults, the messages, the clients, the replica and the store.

use std::collections::BTreeSet;

/// How many clients there are, each with one claim.
pub(super) const CLIENTS: usize = 2;

/// The size of the search, and the fault that is built in.
#[derive(Clone, Debug)]
pub struct Bound {
    /// How many ticks there are.
    pub ticks: u8,
    /// The lease after a renewal.
    pub ttl: u8,
    /// The claim window: how long a first grant lasts.
    pub window: u8,
    /// How long the store keeps the session after it has heard from it.
    pub session: u8,
    /// How many requests the first client may send; the second client may send one less.
    pub requests: u8,
    /// How many messages may be in flight at once.
    pub in_flight: u8,
    /// Whether a timer of the replica keeps its session alive, not only its clients' heartbeats. The table still ends
    /// claims, so nothing breaks.
    pub keeps_alive: bool,
    /// The fault that is built in, if any.
    pub mutant: Option<Mutant>,
}

/// A fault that can be built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The claims of clients that have gone are never ended.
    NoReaper,
    /// A claim is withdrawn once, whether or not the store confirms that.
    DeletesOnce,
    /// A claim is withdrawn while a call about it is under way.
    ReapsBesideACall,
    /// An id that was ended here is placed again.
    PlacesAgainWhatItEnded,
    /// A heartbeat is answered before the store has confirmed it.
    AnswersBeforeTheStore,
    /// The lease counts from the arrival of the answer.
    CountsFromTheAnswer,
    /// A claim is withdrawn before the end of the lease that its client was told.
    ReapsEarly,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::NoReaper,
        Self::DeletesOnce,
        Self::ReapsBesideACall,
        Self::PlacesAgainWhatItEnded,
        Self::AnswersBeforeTheStore,
        Self::CountsFromTheAnswer,
        Self::ReapsEarly,
    ];
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// To take the lock, or to continue waiting.
    Place,
    /// To renew.
    Renew,
}

/// A message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// From a client to the replica.
    Ask {
        /// The kind of request.
        kind: Kind,
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
    },
    /// From a client to the replica: the claim is over.
    Release {
        /// The claim.
        claim: u8,
    },
    /// From the replica to the store: a claim's key, or a heartbeat of the session.
    Call {
        /// The kind of request.
        kind: Kind,
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the replica received the request.
        received: u8,
    },
    /// From the store to the replica: the answer to such a call.
    Called {
        /// The kind of request.
        kind: Kind,
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// When the replica received the request.
        received: u8,
        /// Whether the claim holds.
        holds: bool,
    },
    /// From the replica to a client: it holds for so long after it sent the request; 0: it does not hold.
    Answer {
        /// The claim.
        claim: u8,
        /// The request.
        number: u8,
        /// For how long.
        lease: u8,
    },
    /// From the replica to the store: deletes a claim's key.
    Delete {
        /// The claim.
        claim: u8,
    },
    /// From the store to the replica: the key is deleted.
    Deleted {
        /// The claim.
        claim: u8,
    },
}

/// The stage of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It has sent nothing.
    #[default]
    Idle,
    /// It has sent a request, and has no answer or is queued.
    Asking,
    /// It holds until its validity ends.
    Holding,
    /// It has released or lost the lock, or is dead.
    Gone,
}

/// What a client knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    /// Its stage.
    pub stage: Stage,
    /// How many requests it has sent.
    pub(super) used: u8,
    /// The request whose answer it waits for; 0 for none.
    pub(super) pending: u8,
    /// When it sent that request.
    pub(super) sent: u8,
    /// When its validity ends.
    pub valid: u8,
}

/// What the replica knows of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Until when it keeps the claim; 0 if it does not know it.
    pub(super) until: u8,
    /// The replica withdraws the claim again and again until the store confirms that.
    pub(super) ending: bool,
    /// The store has confirmed that.
    pub(super) ended: bool,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// The time.
    pub now: u8,
    pub(super) clients: [Client; CLIENTS],
    /// The store's keys, in order. All are on the one session. The first one holds.
    pub(super) keys: Vec<u8>,
    /// Until when the store keeps the session; 0 if there is none.
    pub(super) session: u8,
    pub(super) table: [Entry; CLIENTS],
    /// Whether the replica lives.
    pub(super) lives: bool,
    /// The messages in flight.
    pub(super) messages: BTreeSet<Message>,
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
    /// A client sends a request for the lock, or repeats it.
    Place(u8),
    /// A holder renews.
    Renew(u8),
    /// A holder releases.
    Release(u8),
    /// A client dies.
    Die(u8),
    /// The replica withdraws a claim whose time is over, or withdraws it again.
    Reap(u8),
    /// The replica keeps its session alive by itself.
    KeepAlive,
    /// The replica dies.
    ReplicaDies,
}

impl Bound {
    /// Whether this fault was built in.
    pub(super) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The lease that a request of this kind gives.
    pub(super) fn lease(&self, kind: Kind) -> u8 {
        match kind {
            Kind::Place => self.window,
            Kind::Renew => self.ttl,
        }
    }
}

impl World {
    pub(super) fn client(&mut self, claim: u8) -> &mut Client {
        &mut self.clients[usize::from(claim)]
    }

    pub(super) fn entry(&mut self, claim: u8) -> &mut Entry {
        &mut self.table[usize::from(claim)]
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: Message) {
        self.messages.insert(message);
    }
}

/// A client that has released or lost the lock, or is dead. Its knowledge no longer matters.
pub(super) const GONE: Client = Client {
    stage: Stage::Gone,
    used: 0,
    pending: 0,
    sent: 0,
    valid: 0,
};
