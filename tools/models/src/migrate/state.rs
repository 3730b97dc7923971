//! What a state is made of.

use std::fmt;

/// For how many ticks a store keeps a grant.
pub(super) const LEASE: u8 = 2;
/// For how many ticks knowledge carries a new grant.
pub(super) const GRANT: u8 = 1;
/// No record, or no knowledge.
pub(super) const NONE: u8 = 15;

/// The phase of the second change that is the first of it: the stores have changed their parts.
pub(super) const SECOND: u8 = 5;

pub(super) const OLD: usize = 0;
pub(super) const NEW: usize = 1;

/// A way to build it wrong, or a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// From "both, old counts" straight to "both, new counts".
    NoHush,
    /// The last step waits only as long as the others.
    LastStepAsOthers,
    /// Steps follow at once.
    StepsAtOnce,
    /// Knowledge counts from the answer, not from the request.
    CountsFromAnswer,
    /// A hold outlives the knowledge that it was made by.
    HoldsOutliveKnowledge,
    /// With two stores in charge, a grant takes only the one whose token counts.
    TakesOneOfTwo,
    /// A token from before the floor is believed.
    IgnoresFloor,
    /// The floor is taken before the hush.
    FloorBeforeHush,
    /// There is no floor.
    NoFloor,
    /// A second administrator writes one store without having won the other.
    TwoAdministrators,
    /// A store without a record is taken for one in phase 0.
    NoRecordIsOld,
    /// In the hush a hold may have the old store alone. The search finds nothing wrong with it.
    HushNeedsNoPair,
    /// On the way back the hush takes no floor, wherever it came from.
    NoFloorBack,
    /// A store that has lost its record gets back from where the other one knows the hush to have come.
    LostRecordKeepsOrigin,
    /// The floor of the first change is thought to do for the second one.
    NoSecondFloor,
    /// The second change does not wait for those who know the first one only.
    SecondIsHasty,
    /// The second change begins before the first is over.
    SecondBeforeTheEnd,
    /// A grant by knowledge that is good for a hold only.
    GrantsByOldKnowledge,
}

/// What a client knows and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) phase: u8,
    /// Whether it is a program of the second change.
    pub(super) of_second: bool,
    /// How old that knowledge is.
    pub(super) age: u8,
    pub(super) floors: [u8; 2],
    /// What is left of its leases, as it believes.
    pub(super) left: [u8; 2],
    pub(super) tokens: [u8; 2],
    pub(super) believes: bool,
}

/// Who has the lock at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Holder {
    Nobody,
    /// Somebody who is done with it: the withdrawal is on its way.
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
    /// Part of the record: in the hush, the phase before it.
    pub(super) hush_from: u8,
    pub(super) floors: [u8; 2],
    /// Record and floors before the last tick.
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
    /// How long both records have said the same.
    pub(super) since: u8,
    /// The floor that is ready for the next phase, and the store that it is for.
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
    /// A store goes away, or is back.
    Outage(usize),
    /// A withdrawal arrives.
    Withdrawal(usize),
    /// A store forgets its record.
    RecordLost(usize),
    /// A client hears from a store, which it asked so many ticks ago.
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
    /// A client hears that its claim at a store is over.
    Loses(usize, usize),
    /// A client is granted a store, and does not hear it.
    Unheard(usize, usize),
    /// A client has a store, which it asked so many ticks ago.
    Has {
        /// The client.
        client: usize,
        /// The store.
        store: usize,
        /// The ticks.
        ago: u8,
    },
    /// A client lets go.
    LetsGo(usize),
    /// A client gives back a token that is not above the floor.
    GivesBack(usize),
    /// A client begins to believe.
    Believes(usize, u8),
    /// A record that was lost, or that is behind, is written.
    Repairs(usize),
    /// Another administrator writes a phase to the new store alone.
    Intrudes(u8),
    /// The floor is taken, for the tokens of this store.
    TakesFloor(usize),
    /// The record that decides goes on to this phase.
    Phase(u8),
    /// The first change goes back a step while the second one is prepared.
    Meets,
}

/// A step, and where it leads.
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
    /// What a client has at one store is over for it: a withdrawal goes out.
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

    /// The clients are alike: each state stands for both orders of them.
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
