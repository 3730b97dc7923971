//! The parts of a state.

use std::fmt;

/// For how many ticks a store keeps a grant.
pub(super) const LEASE: u8 = 2;
/// For how many ticks knowledge is valid for a new grant.
pub(super) const GRANT: u8 = 1;
/// No record, or no knowledge.
pub(super) const NONE: u8 = 15;

/// The first phase of the second change, in which the stores are exchanged.
pub(super) const SECOND: u8 = 5;

pub(super) const OLD: usize = 0;
pub(super) const NEW: usize = 1;

/// A way to build it wrong, or a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A step from "both, old counts" directly to "both, new counts".
    NoHush,
    /// The last step waits only as long as the others.
    LastStepAsOthers,
    /// Steps follow each other at once.
    StepsAtOnce,
    /// Knowledge counts from the answer, not from the request.
    CountsFromAnswer,
    /// A hold outlives the knowledge on which it is based.
    HoldsOutliveKnowledge,
    /// While both stores grant, a grant takes only the store whose token counts.
    TakesOneOfTwo,
    /// A token from before the floor is believed.
    IgnoresFloor,
    /// The floor is taken before the hush.
    FloorBeforeHush,
    /// There is no floor.
    NoFloor,
    /// A second administrator writes to one store without having won the other one.
    TwoAdministrators,
    /// A store without a record counts as a store in phase 0.
    NoRecordIsOld,
    /// In the hush a hold may have the old store alone. The search finds no violation with it.
    HushNeedsNoPair,
    /// A step back takes no floor in the hush, whatever phase the hush came from.
    NoFloorBack,
    /// A store that has lost its record gets the phase before the hush back from the other store.
    LostRecordKeepsOrigin,
    /// The floor of the first change is used for the second one, too.
    NoSecondFloor,
    /// The second change does not wait for clients that know only the first one.
    SecondIsHasty,
    /// The second change begins before the first one is over.
    SecondBeforeTheEnd,
    /// A grant uses knowledge that is valid for a hold only.
    GrantsByOldKnowledge,
}

/// What a client knows and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) phase: u8,
    /// Whether it is a program of the second change.
    pub(super) of_second: bool,
    /// The age of that knowledge.
    pub(super) age: u8,
    pub(super) floors: [u8; 2],
    /// The rest of its leases, as it believes.
    pub(super) left: [u8; 2],
    pub(super) tokens: [u8; 2],
    pub(super) believes: bool,
}

/// The holder at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Holder {
    Nobody,
    /// A client that no longer wants it. Its withdrawal is in flight.
    Leaving,
    Client(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Store {
    pub(super) up: bool,
    pub(super) holder: Holder,
    pub(super) left: u8,
    pub(super) counter: u8,
    pub(super) draws: u8,
    pub(super) record: u8,
    /// Part of the record. In the hush: the phase before it.
    pub(super) hush_from: u8,
    pub(super) floors: [u8; 2],
    /// The record and the floors before the last tick.
    pub(super) before: (u8, [u8; 2]),
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Broken {
    TwoBelieve,
    TokenNotAbove,
}

/// The state of the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) clients: [Client; 2],
    pub(super) stores: [Store; 2],
    /// How long both records have had the same phase.
    pub(super) since: u8,
    /// The floor that is ready for the next phase, and the store of its tokens.
    pub(super) ready: Option<(usize, u8)>,
    pub(super) walks: u8,
    pub(super) highest: u8,
    pub(super) grants: u8,
    pub(super) record_lost: bool,
    pub(super) broken: Option<Broken>,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A tick passes.
    Tick,
    /// A store goes away, or comes back.
    Outage(usize),
    /// A withdrawal arrives.
    Withdrawal(usize),
    /// A store forgets its record.
    RecordLost(usize),
    /// A client gets an answer from a store, whose request is so many ticks old.
    Hears {
        /// The client.
        client: usize,
        /// The store.
        store: usize,
        /// The phase.
        phase: u8,
        /// The ticks.
        ago: u8,
    },
    /// A client learns that its claim at a store has ended.
    Loses(usize, usize),
    /// A store grants the lock to a client that does not learn of it.
    Unheard(usize, usize),
    /// A client has a store. Its request is so many ticks old.
    Has {
        /// The client.
        client: usize,
        /// The store.
        store: usize,
        /// The ticks.
        ago: u8,
    },
    /// A client releases the lock.
    LetsGo(usize),
    /// A client gives back a token that is not above the floor.
    GivesBack(usize),
    /// A client begins to believe.
    Believes(usize, u8),
    /// A record that was lost or that is behind is written.
    Repairs(usize),
    /// Another administrator writes a phase to the new store alone.
    Intrudes(u8),
    /// The floor is taken, for the tokens of this store.
    TakesFloor(usize),
    /// The record that decides changes to this phase.
    Phase(u8),
    /// The first change goes back by one step while the second one is prepared.
    Meets,
}

/// A step, and the state after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What happens.
    pub event: Event,
    pub(super) to: State,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.event.fmt(f)
    }
}

impl State {
    /// A client gives up its lease at one store, and a withdrawal is sent.
    pub(super) fn drop_claim(&mut self, client: usize, store: usize) {
        self.clients[client].left[store] = 0;
        self.clients[client].tokens[store] = 0;
        let holder = &mut self.stores[store].holder;
        if *holder == Holder::Client(client) {
            *holder = Holder::Leaving;
        }
    }

    pub(super) fn let_go(&mut self, client: usize) {
        for store in 0..2 {
            self.drop_claim(client, store);
        }
        self.clients[client].believes = false;
    }

    /// Clients are alike, so each state also represents the state with the clients exchanged.
    pub(super) fn sorted(mut self) -> Self {
        let key = |state: &Self, client: usize| {
            let holds = |store: usize| state.stores[store].holder == Holder::Client(client);
            (state.clients[client], [holds(0), holds(1)])
        };
        if key(&self, 1) < key(&self, 0) {
            self.clients.swap(0, 1);
            for store in &mut self.stores {
                if let Holder::Client(client) = &mut store.holder {
                    *client = 1 - *client;
                }
            }
        }
        self
    }
}

impl Client {
    pub(super) const fn new(age: u8) -> Self {
        Self {
            phase: NONE,
            of_second: false,
            age,
            floors: [0; 2],
            left: [0; 2],
            tokens: [0; 2],
            believes: false,
        }
    }
}
