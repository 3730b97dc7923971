//! One attempt of one claim at all nodes at once. The first round collects votes. If the votes do not agree on a token, the
//! second round decides.
//!
//! Every node has a counter per bucket of names. A vote raises it and returns the new value. A quorum of votes that all return
//! m is a grant with the token m. Otherwise m is the highest value of a quorum, and the client asks each node that voted to mark
//! it. To mark m, a node raises its counter to m. It does so only if the counter is below m, or is m by this very vote. A quorum
//! of marks is the grant. So each node votes for each token at most once. And an attempt that begins after a grant of m meets a
//! node whose counter is at least m.

use crate::error::about;
use crate::redlock::ballot::ACTION;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::support::spread;
use fencelock_core::{BootInstant, Clock, Error, LockName, Token, Tokens};
use redis::{Cmd, RedisError, Value};

use super::ballot::{self, Ballot};
use super::batcher::Replies;
use super::connection::Connection;
use super::node::{BUCKETS, MEMORY, Node, Voters};
use super::round::{Round, Tally};
use super::state::State;
use super::withdrawal::{prefix, undo};
use crate::keys::queue_key;
use crate::stored::{mark, push_number, push_rest, px};

/// How an attempt is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Without a script: for a claim without expected contention.
    pub(crate) fast: bool,
    /// No counter may stay below this.
    pub(crate) hint: u64,
    /// Whether to join the queue of a node where the lock is taken.
    pub(crate) waits: bool,
    /// Whether to ask the first node alone, before the others.
    pub(crate) gate: bool,
}

/// The outcome of an attempt. Unless it is a grant, the votes are undone, perhaps in the background.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    /// Another claim holds a majority, for at least this long.
    Taken(Option<Duration>),
    /// Several claims have votes, and none has a quorum. The next attempt should suggest this number.
    Split(u64),
    Failed(Error),
}

/// The nodes that marked a token.
#[derive(Debug)]
struct Marks {
    quorum: usize,
    yes: usize,
    /// How many nodes have not replied.
    left: usize,
}

impl Tally for Marks {
    fn is_enough(&self) -> bool {
        self.yes >= self.quorum || self.yes + self.left < self.quorum
    }
}

struct Attempt<'a> {
    state: &'a Arc<State>,
    claim: &'a Claim,
    manner: Manner,
    number: u64,
    asked_at: BootInstant,
    voters: Voters,
}

/// The counter of a name. It is the same for all clients of a store, so it can never change.
fn bucket(name: &LockName) -> usize {
    spread(name, BUCKETS)
}

pub(crate) async fn attempt(state: &Arc<State>, claim: &Claim, manner: Manner) -> Outcome {
    let asked_at = Clock::Boot.now();
    let voters: Voters = state
        .nodes
        .iter()
        .filter_map(|node| Some((Arc::clone(node), node.voter(asked_at)?)))
        .collect();
    if voters.len() < state.config.quorum {
        return Outcome::Failed(state.too_few(&about(ACTION, Some(&claim.name)), Vec::new()));
    }
    let attempt = Attempt {
        state,
        claim,
        manner,
        number: state.next_attempt(),
        asked_at,
        voters,
    };
    attempt.run().await
}

impl Attempt<'_> {
    async fn run(&self) -> Outcome {
        let (quorum, timeout) = (self.state.config.quorum, self.state.config.node_timeout);
        let round = Round::new(Ballot {
            quorum,
            voters: self.voters.len(),
            ..Ballot::default()
        });
        let (first, others) = self.voters.split_at(usize::from(self.manner.gate));
        if !first.is_empty() {
            self.ask_for_votes(first, &round);
            round.enough(timeout).await;
            let ballot = round.tally.lock();
            if !ballot.taken.is_empty() {
                return Outcome::Taken(ballot.left);
            }
        }
        self.ask_for_votes(others, &round);
        round.enough(timeout).await;
        let mut ballot = std::mem::take(&mut *round.tally.lock());
        if let Some(grant) = self.grant(&mut ballot).await {
            return Outcome::Granted(grant);
        }
        let undone: Voters = self.not_taken(&ballot).cloned().collect();
        if !undone.is_empty() {
            undo(self.state, undone, self.claim, self.number).await;
        }
        if ballot.yes.len() + ballot.taken.len() < quorum {
            let action = about(ACTION, Some(&self.claim.name));
            return Outcome::Failed(self.state.too_few(&action, ballot.failed));
        }
        if ballot.taken.len() >= quorum || ballot.yes.is_empty() {
            return Outcome::Taken(ballot.left);
        }
        Outcome::Split(ballot.highest + 1)
    }

    /// The nodes that voted yes, or may have.
    fn not_taken(&self, ballot: &Ballot) -> impl Iterator<Item = &(Arc<Node>, Arc<Connection>)> {
        let taken = &ballot.taken;
        self.voters
            .iter()
            .filter(|(node, _)| !taken.contains(&node.index))
    }

    /// The grant, if a quorum voted yes and agrees on a token.
    async fn grant(&self, ballot: &mut Ballot) -> Option<Grant> {
        let (token, agreed) = ballot.token()?;
        #[cfg(fencelock_planted)]
        let agreed = agreed || fencelock_core::planted::is("token-before-write-back");
        if !agreed && !self.mark(ballot, token).await {
            return None;
        }
        Some(
            Grant::new(Tokens::one(Token(token)), self.asked_at, self.claim.ttl)
                .recorded(!self.manner.fast || !agreed),
        )
    }

    /// The second round: asks the nodes that voted yes, or may have, to mark the token. Returns whether a quorum did.
    async fn mark(&self, ballot: &Ballot, token: u64) -> bool {
        let (state, claim) = (self.state, self.claim);
        let round = Round::new(Marks {
            quorum: state.config.quorum,
            yes: 0,
            left: self.not_taken(ballot).count(),
        });
        for (node, connection) in self.not_taken(ballot) {
            let mut command = Cmd::with_capacity(10, 256);
            command.arg("EVALSHA").arg(&state.scripts.mark.sha).arg(2);
            command.arg(claim.name.as_str()).arg(MEMORY);
            command
                .arg(&prefix(claim, Some(self.number))[..])
                .arg(token);
            command.arg(bucket(&claim.name)).arg(px(claim));
            command.arg(u8::from(ballot.yes.contains(&(node.index, token))));
            let round = Arc::clone(&round);
            let count = move |replies: Result<Replies<'_>, RedisError>| {
                let marked = replies.is_ok_and(|replies| matches!(replies.values, [Value::Int(1)]));
                round.count(|marks| {
                    marks.yes += usize::from(marked);
                    marks.left -= 1;
                });
            };
            connection.send(&[command], false, Box::new(count));
        }
        round.enough(state.config.node_timeout).await;
        let yes = round.tally.lock().yes;
        yes >= state.config.quorum
    }

    fn ask_for_votes(&self, voters: &[(Arc<Node>, Arc<Connection>)], round: &Arc<Round<Ballot>>) {
        round.tally.lock().asked += voters.len();
        let fast = self.manner.fast;
        let commands = fast.then(|| self.fast_vote());
        let name = Arc::new(self.claim.name.clone());
        for (node, connection) in voters {
            let (state, round, name) =
                (Arc::clone(self.state), Arc::clone(round), Arc::clone(&name));
            let (voter, asked) = (Arc::clone(node), Arc::clone(connection));
            let count = move |replies: Result<Replies<'_>, RedisError>| {
                let vote = ballot::read(&voter, &asked, &name, state.delay(), replies, fast);
                round.count(|ballot| ballot.count(voter.index, vote));
            };
            match &commands {
                Some(commands) => connection.send(commands, true, Box::new(count)),
                None => connection.send(&[self.script_vote(node)], false, Box::new(count)),
            }
        }
    }

    /// A vote without a script: takes the lock if it is free, and raises the counter in any case.
    fn fast_vote(&self) -> [Cmd; 2] {
        let claim = self.claim;
        let mut value = prefix(claim, Some(self.number));
        value.extend_from_slice(b"1:0:");
        push_number(&mut value, px(claim));
        value.extend_from_slice(b":0:0:");
        push_rest(&mut value, claim, &self.state.channel);
        let mut set = Cmd::with_capacity(6, claim.name.as_str().len() + value.len() + 80);
        set.arg("SET").arg(claim.name.as_str()).arg(&value[..]);
        set.arg("NX").arg("PX").arg(px(claim));
        let mut draw = Cmd::with_capacity(4, 64);
        draw.arg("HINCRBY")
            .arg(MEMORY)
            .arg(bucket(&claim.name))
            .arg(1);
        [set, draw]
    }

    /// A vote by the script, which also lets a later attempt replace an earlier one, and joins the queue.
    fn script_vote(&self, node: &Node) -> Cmd {
        let (state, claim, manner) = (self.state, self.claim, self.manner);
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &state.channel);
        let allowed = state.config.node_timeout.as_millis() as i64 * 4;
        let deadline = node.clock.at_most(Clock::Boot.now());
        let deadline = deadline.map_or(1 << 52, |micros| micros / 1000 + allowed);
        let mut command = Cmd::with_capacity(14, 512);
        command
            .arg("EVALSHA")
            .arg(&state.scripts.acquire.sha)
            .arg(3)
            .arg(claim.name.as_str())
            .arg(queue_key(claim.name.as_str()))
            .arg(MEMORY)
            .arg(&mark(&claim.id)[4..])
            .arg(self.number)
            .arg(px(claim))
            .arg(manner.hint)
            .arg(bucket(&claim.name))
            .arg(u8::from(manner.waits))
            .arg(deadline)
            .arg(&rest[..]);
        command
    }
}
