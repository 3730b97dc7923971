//! Fencing tokens from a majority of independent nodes (the engine `redlock`), without clocks. Any message may be lost,
//! late or duplicated. Any lock may vanish at any moment. Nodes may lose their memory.
//!
//! A state contains what each node has stored and answered so far. An attempt decides on any majority of the answers,
//! at any time; this includes lost and late answers. Requests of attempts that have ended still arrive. Nodes are
//! alike, so each state represents all its permutations of nodes.

use stateright::{Model, Property};

/// The protocol, and faults that can be built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The protocol without a fault.
    Right,
    /// The highest counter of a majority is the token, without a second round.
    NoWriteBack,
    /// A node marks a token without checking its counter.
    MarkWithoutComparison,
    /// A node marks a token that its counter has reached for any attempt.
    MarkOfAnother,
    /// A node that has lost its memory continues to vote.
    SilentRejoin,
    /// Such a node reads the counters of others before it votes, but does not wait for the end of attempts that began before
    /// the loss.
    RejoinAfterReading,
}

/// A model of `N` nodes and `A` attempts.
#[derive(Clone, Copy, Debug)]
pub struct QuorumToken<const N: usize, const A: usize> {
    /// How many nodes must agree.
    pub quorum: usize,
    /// How often nodes may lose their memory, in total.
    pub losses: u8,
    /// Whether such nodes vote again.
    pub rejoin: bool,
    /// How many requests to take a lock may arrive a second time, in total.
    pub repeats: u8,
    /// Whether a counter may also grow, and even vote, while another attempt has the lock, and whether attempts may
    /// hint at a higher counter. Without scripts a counter does that, since the lock is set and the number is drawn in
    /// two steps.
    pub jumps: bool,
    /// The fault that is built in.
    pub variant: Variant,
}

/// The state of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State<const N: usize, const A: usize> {
    nodes: [Node<A>; N],
    attempts: [Attempt; A],
    losses: u8,
    repeats: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node<const A: usize> {
    /// The attempt that has the lock at this node, counted from 1; 0 if the lock is free.
    key: u8,
    counter: u8,
    membership: Membership,
    said: [Said; A],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Membership {
    In,
    /// It has lost its memory. The attempts that were active at that moment, one bit each.
    Out(u8),
    /// It has read the counters of others.
    Read(u8),
}

/// What a node has received from an attempt and answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Said {
    /// Whether the request for the lock has arrived.
    asked: bool,
    /// The vote; 0 for none.
    vote: u8,
    marked: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Attempt {
    phase: Phase,
    token: u8,
    /// The highest token granted before it began.
    floor: u8,
    hint: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Marking,
    Granted,
    Failed,
}

impl Phase {
    fn is_active(self) -> bool {
        matches!(self, Self::Asking | Self::Marking)
    }
}

impl Attempt {
    /// Whether a node's vote still matters.
    fn hears(self, vote: u8) -> bool {
        self.phase == Phase::Asking || self.phase == Phase::Marking && vote == self.token
    }
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The next attempt begins, with a hint or without.
    Begin(bool),
    /// A request for the lock arrives; if `true`, the counter grows and votes although another attempt has the lock.
    Ask(usize, usize, bool),
    /// An attempt has a majority of votes: the highest, and whether all are the same.
    Decide(usize, u8, bool),
    /// A request to mark arrives.
    Mark(usize, usize),
    /// An attempt has a majority of marks.
    Grant(usize),
    /// An attempt gives up.
    Fail(usize),
    /// A lock vanishes at a node: its lease ends, it is released, or deleted.
    Vanish(usize),
    /// A node loses its memory.
    Lose(usize),
    /// It has read the counters of others, of which this is the highest.
    Read(usize, u8),
    /// It votes again.
    Join(usize),
}

impl<const N: usize, const A: usize> QuorumToken<N, A> {
    /// The protocol without a fault, with every kind of failure.
    #[must_use]
    pub fn right(losses: u8, repeats: u8) -> Self {
        Self {
            quorum: N / 2 + 1,
            losses,
            rejoin: true,
            repeats,
            jumps: true,
            variant: Variant::Right,
        }
    }

    /// The possible maxima of any `count` of these values, each once.
    fn highest_of(mut values: Vec<u8>, count: usize) -> Vec<u8> {
        values.sort_unstable();
        let mut highest: Vec<u8> = values.get(count - 1..).unwrap_or_default().to_vec();
        highest.dedup();
        highest
    }

    /// The requests of an attempt that may arrive at a node.
    fn requests_of(&self, state: &State<N, A>, a: usize, actions: &mut Vec<Action>) {
        let attempt = state.attempts[a];
        for (n, node) in state.nodes.iter().enumerate() {
            if node.membership != Membership::In {
                continue;
            }
            if !node.said[a].asked || state.repeats < self.repeats {
                actions.push(Action::Ask(a, n, false));
                let taken = node.key != 0 && usize::from(node.key) != a + 1;
                if self.jumps && taken {
                    actions.push(Action::Ask(a, n, true));
                }
            }
            if attempt.token > 0 && usize::from(node.key) == a + 1 {
                actions.push(Action::Mark(a, n));
            }
        }
    }

    /// What an attempt may conclude from the answers that it has.
    fn decisions_of(&self, state: &State<N, A>, a: usize, actions: &mut Vec<Action>) {
        let phase = state.attempts[a].phase;
        if phase == Phase::Asking {
            let votes = state.nodes.iter().map(|node| node.said[a].vote);
            let votes: Vec<u8> = votes.filter(|vote| *vote > 0).collect();
            for highest in Self::highest_of(votes.clone(), self.quorum) {
                let same = votes.iter().filter(|vote| **vote == highest).count();
                if same >= self.quorum {
                    actions.push(Action::Decide(a, highest, true));
                }
                let lower = votes.iter().filter(|vote| **vote < highest).count();
                if lower > 0 && lower + same >= self.quorum {
                    actions.push(Action::Decide(a, highest, false));
                }
            }
        }
        if phase == Phase::Marking {
            let marks = state.nodes.iter().filter(|node| node.said[a].marked);
            if marks.count() >= self.quorum {
                actions.push(Action::Grant(a));
            }
        }
        if phase.is_active() {
            actions.push(Action::Fail(a));
        }
    }

    /// What may happen to a node, and how it votes again after it has lost its memory.
    fn actions_of_node(&self, state: &State<N, A>, n: usize, actions: &mut Vec<Action>) {
        let node = &state.nodes[n];
        match node.membership {
            Membership::In => {
                if node.key != 0 {
                    actions.push(Action::Vanish(n));
                }
                if state.losses < self.losses {
                    actions.push(Action::Lose(n));
                }
            }
            Membership::Out(before) => {
                let over =
                    |a: usize| before & (1 << a) == 0 || !state.attempts[a].phase.is_active();
                let waited = (0..A).all(over);
                let hasty = self.variant == Variant::RejoinAfterReading;
                if self.rejoin && (waited || hasty) {
                    let members = state.nodes.iter();
                    let members = members.filter(|node| node.membership == Membership::In);
                    let counters = members.map(|node| node.counter).collect();
                    // At least one of these nodes is in every quorum that includes this node.
                    let enough = N - self.quorum + 1;
                    for highest in Self::highest_of(counters, enough) {
                        actions.push(Action::Read(n, highest));
                    }
                }
            }
            Membership::Read(_) => actions.push(Action::Join(n)),
        }
    }

    /// A request to mark the token arrives at a node.
    fn mark(&self, node: &mut Node<A>, a: usize, attempt: Attempt) {
        let own = node.said[a].vote == attempt.token || node.said[a].marked;
        let marks = match self.variant {
            Variant::MarkWithoutComparison => true,
            Variant::MarkOfAnother => node.counter <= attempt.token,
            _ => node.counter < attempt.token || node.counter == attempt.token && own,
        };
        if marks {
            node.counter = node.counter.max(attempt.token);
            node.said[a].marked |= attempt.phase == Phase::Marking;
        }
    }
}

impl<const A: usize> Node<A> {
    /// The counter becomes the vote for an attempt, if that still counts votes.
    fn vote(&mut self, a: usize, attempt: Attempt) {
        if attempt.hears(self.counter) {
            self.said[a].vote = self.counter;
        }
    }
}

/// The next attempt begins. `None` if all have begun.
fn begin<const N: usize, const A: usize>(state: &mut State<N, A>, hints: bool) -> Option<()> {
    let granted = state.attempts.iter().filter(|a| a.phase == Phase::Granted);
    let floor = granted.map(|attempt| attempt.token).max().unwrap_or(0);
    let counters = state.nodes.iter().map(|node| node.counter);
    let highest = counters.max().unwrap_or(0);
    let idle = |attempt: &&mut Attempt| attempt.phase == Phase::Idle;
    let attempt = state.attempts.iter_mut().find(idle)?;
    attempt.phase = Phase::Asking;
    attempt.floor = floor;
    attempt.hint = if hints { highest + 1 } else { 0 };
    Some(())
}

impl<const N: usize, const A: usize> Model for QuorumToken<N, A> {
    type State = State<N, A>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let node = Node {
            key: 0,
            counter: 0,
            membership: Membership::In,
            said: [Said::default(); A],
        };
        vec![State {
            nodes: [node; N],
            attempts: [Attempt::default(); A],
            losses: 0,
            repeats: 0,
        }]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        if state.attempts.iter().any(|a| a.phase == Phase::Idle) {
            actions.push(Action::Begin(false));
            if self.jumps {
                actions.push(Action::Begin(true));
            }
        }
        for (a, attempt) in state.attempts.iter().enumerate() {
            if attempt.phase != Phase::Idle {
                self.requests_of(state, a, actions);
                self.decisions_of(state, a, actions);
            }
        }
        for n in 0..N {
            self.actions_of_node(state, n, actions);
        }
    }

    fn next_state(&self, last: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut state = last.clone();
        match action {
            Action::Begin(hints) => begin(&mut state, hints)?,
            Action::Ask(a, n, jumps) => {
                let attempt = last.attempts[a];
                let node = &mut state.nodes[n];
                state.repeats += u8::from(node.said[a].asked);
                node.said[a].asked = true;
                if node.key == 0 || usize::from(node.key) == a + 1 {
                    node.key = a as u8 + 1;
                    node.counter = (node.counter + 1).max(attempt.hint);
                    node.vote(a, attempt);
                } else if jumps {
                    node.counter += 1;
                    node.vote(a, attempt);
                }
            }
            Action::Decide(a, highest, same) => {
                let done = same || self.variant == Variant::NoWriteBack;
                state.attempts[a].token = highest;
                state.attempts[a].phase = if done { Phase::Granted } else { Phase::Marking };
            }
            Action::Mark(a, n) => self.mark(&mut state.nodes[n], a, last.attempts[a]),
            Action::Grant(a) => state.attempts[a].phase = Phase::Granted,
            Action::Fail(a) => state.attempts[a].phase = Phase::Failed,
            Action::Vanish(n) => state.nodes[n].key = 0,
            Action::Lose(n) => {
                let active = (0..A).filter(|a| last.attempts[*a].phase.is_active());
                let before = active.fold(0, |before, a| before | 1 << a);
                state.losses += 1;
                let node = &mut state.nodes[n];
                node.key = 0;
                node.counter = 0;
                if self.variant != Variant::SilentRejoin {
                    node.membership = Membership::Out(before);
                }
            }
            Action::Read(n, highest) => state.nodes[n].membership = Membership::Read(highest),
            Action::Join(n) => {
                let node = &mut state.nodes[n];
                if let Membership::Read(highest) = node.membership {
                    node.counter = highest;
                }
                node.membership = Membership::In;
            }
        }
        forget(&mut state);
        state.nodes.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no token twice", |_, state: &State<N, A>| {
                let granted = |a: &Attempt| a.phase == Phase::Granted;
                let all: Vec<_> = state.attempts.iter().filter(|a| granted(a)).collect();
                all.iter()
                    .enumerate()
                    .all(|(i, one)| all[i + 1..].iter().all(|other| one.token != other.token))
            }),
            Property::always("tokens follow time", |_, state: &State<N, A>| {
                let granted = state.attempts.iter();
                let mut granted = granted.filter(|a| a.phase == Phase::Granted);
                granted.all(|attempt| attempt.token > attempt.floor)
            }),
            // Without these properties, a protocol that grants nothing would pass.
            Property::sometimes("all are granted", |_, state: &State<N, A>| {
                let mut attempts = state.attempts.iter();
                attempts.all(|attempt| attempt.phase == Phase::Granted)
            }),
            Property::sometimes("a second round grants", |_, state: &State<N, A>| {
                let granted = |a: usize| state.attempts[a].phase == Phase::Granted;
                let marked = |a: usize| state.nodes.iter().any(|node| node.said[a].marked);
                (0..A).any(|a| granted(a) && marked(a))
            }),
        ]
    }
}

/// Drops what no longer matters, so that there are fewer different states.
fn forget<const N: usize, const A: usize>(state: &mut State<N, A>) {
    for (a, attempt) in state.attempts.iter_mut().enumerate() {
        for node in &mut state.nodes {
            let said = &mut node.said[a];
            if !attempt.hears(said.vote) {
                said.vote = 0;
            }
            if !matches!(attempt.phase, Phase::Marking | Phase::Granted) {
                said.marked = false;
            }
        }
        if attempt.phase == Phase::Granted {
            // Kept at one node only, for the property.
            let marked = state.nodes.iter().any(|node| node.said[a].marked);
            for (n, node) in state.nodes.iter_mut().enumerate() {
                node.said[a].marked = marked && n == 0;
            }
        }
    }
}
