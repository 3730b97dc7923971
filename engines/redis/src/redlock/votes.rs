//! One attempt of one claim at all nodes at once: the first round, which takes the votes, and the second, which agrees on
//! a token where the first did not.
//!
//! Every node keeps a counter per bucket of names. A vote raises it; it says the counter's new value. A majority of votes
//! that all say m is a grant with the token m. Otherwise the highest of a majority becomes m, and each node that voted is
//! asked to mark it: to raise its counter to m, which it does if the counter is below, or is m by this very vote. A majority
//! of marks is the grant. So each node votes for each token once at most, and who begins after a grant of m meets a node
//! whose counter is m or more.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{Clock, Error, LockName, Token, Tokens};
use redis::{Cmd, RedisError, Value};

use super::Inner;
use super::batcher::Told;
use super::connection::Connection;
use super::node::{BUCKETS, MEMORY, Node};
use super::round::{Round, Tally};
use crate::contention::spread;
use crate::error::explain;
use crate::keys::queue_key;
use crate::stored::{mark, push_number, push_rest, px};

/// How one attempt is to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Without a script: for a claim that nobody is expected to contend with.
    pub(crate) plain: bool,
    /// No counter is to stay below this.
    pub(crate) hint: u64,
    /// Whether to stand in line where the lock is taken.
    pub(crate) waits: bool,
    /// Whether to ask one node alone before the others.
    pub(crate) gate: bool,
}

/// What came of an attempt. But for a grant, nothing of it is left, or it is being undone behind.
#[derive(Debug)]
pub(crate) enum Outcome {
    Granted(Grant),
    /// A majority has another claim; for how long at least.
    Taken(Option<Duration>),
    /// Several claims share the nodes among them. The next attempt should hint at this number.
    Split(u64),
    Failed(Error),
}

#[derive(Debug)]
enum Vote {
    Yes(u64),
    Taken { counter: u64, left: i64 },
    Failed(Error),
}

/// What was said so far.
#[derive(Debug, Default)]
struct Ballot {
    quorum: usize,
    /// How many may vote, and how many of them were asked.
    voters: usize,
    asked: usize,
    /// By node: the counter.
    yes: Vec<(usize, u64)>,
    taken: Vec<usize>,
    failed: Vec<(usize, Error)>,
    highest: u64,
    left: Option<Duration>,
}

impl Ballot {
    fn count(&mut self, node: usize, vote: Vote) {
        match vote {
            Vote::Yes(counter) => {
                self.highest = self.highest.max(counter);
                self.yes.push((node, counter));
            }
            Vote::Taken { counter, left } => {
                self.highest = self.highest.max(counter);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                self.left = self.left.max(left);
                self.taken.push(node);
            }
            Vote::Failed(error) => self.failed.push((node, error)),
        }
    }

    fn against(&self) -> usize {
        self.taken.len() + self.failed.len()
    }
}

impl Tally for Ballot {
    fn is_enough(&self) -> bool {
        let (yes, against) = (self.yes.len(), self.against());
        let hopeless = self.voters.saturating_sub(self.quorum);
        yes >= self.quorum || against > hopeless || yes + against >= self.asked
    }
}

/// Who marked.
#[derive(Debug)]
struct Marks {
    quorum: usize,
    yes: usize,
    /// From how many nothing was heard.
    left: usize,
}

impl Tally for Marks {
    fn is_enough(&self) -> bool {
        self.yes >= self.quorum || self.yes + self.left < self.quorum
    }
}

/// How many have not undone an attempt yet.
#[derive(Debug)]
struct Left(usize);

impl Tally for Left {
    fn is_enough(&self) -> bool {
        self.0 == 0
    }
}

/// Nodes that may be asked, with the connections over which they are.
pub(crate) type Asked = Vec<(Arc<Node>, Arc<Connection>)>;

/// The counter that a name uses. The same for all clients of a store, so never to be changed.
fn bucket(name: &LockName) -> usize {
    spread(name, BUCKETS)
}

/// What scripts compare: the claim, or one attempt of it.
pub(crate) fn whose(claim: &Claim, attempt: Option<u64>) -> Vec<u8> {
    let mut whose = mark(&claim.id).to_vec();
    whose.push(b':');
    if let Some(attempt) = attempt {
        push_number(&mut whose, attempt);
        whose.push(b':');
    }
    whose
}

impl Inner {
    /// One attempt.
    pub(crate) async fn attempt(self: &Arc<Self>, claim: &Claim, manner: Manner) -> Outcome {
        let quorum = self.settings.quorum;
        let asked_at = Clock::Boot.now();
        let voters: Asked = self
            .nodes
            .iter()
            .filter_map(|node| Some((Arc::clone(node), node.voter(asked_at)?)))
            .collect();
        if voters.len() < quorum {
            return Outcome::Failed(self.too_few("placing a claim", Vec::new()));
        }
        let attempt = self.next_attempt();
        let round = Round::new(Ballot {
            quorum,
            voters: voters.len(),
            ..Ballot::default()
        });
        let (first, others) = voters.split_at(usize::from(manner.gate));
        if !first.is_empty() {
            self.ask_for_votes(first, &round, claim, attempt, manner);
            round.enough(self.settings.node_timeout).await;
            let ballot = round.tally();
            if !ballot.taken.is_empty() {
                return Outcome::Taken(ballot.left);
            }
        }
        self.ask_for_votes(others, &round, claim, attempt, manner);
        round.enough(self.settings.node_timeout).await;
        let mut ballot = std::mem::take(&mut *round.tally());
        if let Some((token, agreed)) = agreed(&mut ballot.yes, quorum) {
            #[cfg(fencelock_planted)]
            let agreed = agreed || fencelock_core::planted::is("token-before-write-back");
            let marked = agreed || self.mark(&voters, &ballot, claim, attempt, token).await;
            if marked {
                return Outcome::Granted(Grant {
                    tokens: Tokens::one(Token(token)),
                    counted_from: asked_at,
                    lease: claim.ttl,
                    recorded: !manner.plain || !agreed,
                });
            }
        }
        let undone: Asked = voters
            .iter()
            .filter(|(node, _)| !ballot.taken.contains(&node.index))
            .cloned()
            .collect();
        if !undone.is_empty() {
            self.undo(undone, claim, attempt).await;
        }
        if ballot.yes.len() + ballot.taken.len() < quorum {
            return Outcome::Failed(self.too_few("placing a claim", ballot.failed));
        }
        if ballot.taken.len() >= quorum || ballot.yes.is_empty() {
            return Outcome::Taken(ballot.left);
        }
        Outcome::Split(ballot.highest + 1)
    }

    /// The second round: asks all that voted, or may have, to mark the token.
    async fn mark(
        &self,
        voters: &[(Arc<Node>, Arc<Connection>)],
        ballot: &Ballot,
        claim: &Claim,
        attempt: u64,
        token: u64,
    ) -> bool {
        let asked = || {
            let nodes = voters.iter();
            nodes.filter(|(node, _)| !ballot.taken.contains(&node.index))
        };
        let round = Round::new(Marks {
            quorum: self.settings.quorum,
            yes: 0,
            left: asked().count(),
        });
        for (node, link) in asked() {
            let mut command = Cmd::with_capacity(10, 256);
            command.arg("EVALSHA").arg(&self.scripts.mark.sha).arg(2);
            command.arg(claim.name.as_str()).arg(MEMORY);
            command.arg(&whose(claim, Some(attempt))[..]).arg(token);
            command.arg(bucket(&claim.name)).arg(px(claim));
            command.arg(u8::from(ballot.yes.contains(&(node.index, token))));
            let round = Arc::clone(&round);
            let count = move |told: Result<Told<'_>, RedisError>| {
                let marked = told.is_ok_and(|told| matches!(told.values, [Value::Int(1)]));
                round.count(|marks| {
                    marks.yes += usize::from(marked);
                    marks.left -= 1;
                });
            };
            link.send(&[command], false, Box::new(count));
        }
        round.enough(self.settings.node_timeout).await;
        let yes = round.tally().yes;
        yes >= self.settings.quorum
    }

    fn ask_for_votes(
        self: &Arc<Self>,
        voters: &[(Arc<Node>, Arc<Connection>)],
        round: &Arc<Round<Ballot>>,
        claim: &Claim,
        attempt: u64,
        manner: Manner,
    ) {
        round.tally().asked += voters.len();
        let plain = manner.plain.then(|| plainly(self, claim, attempt));
        let read = if manner.plain {
            read_plain
        } else {
            read_script
        };
        let name = Arc::new(claim.name.clone());
        for (node, link) in voters {
            let (inner, round) = (Arc::clone(self), Arc::clone(round));
            let (node, votes) = (Arc::clone(node), Arc::clone(link));
            let name = Arc::clone(&name);
            let count = {
                let node = Arc::clone(&node);
                move |told: Result<Told<'_>, RedisError>| {
                    let vote = told.and_then(|told| read(&inner, &node, &votes, &told));
                    let vote = vote.unwrap_or_else(|error| failed(&node, &name, error));
                    round.count(|ballot| ballot.count(node.index, vote));
                }
            };
            match &plain {
                Some(commands) => link.send(commands, true, Box::new(count)),
                None => {
                    let command = self.by_script(&node, claim, attempt, manner);
                    link.send(&[command], false, Box::new(count));
                }
            }
        }
    }

    /// A vote by the script, which also makes room for a later attempt, and stands in line.
    fn by_script(&self, node: &Node, claim: &Claim, attempt: u64, manner: Manner) -> Cmd {
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &self.channel);
        let deadline = node.clock.at_most(Clock::Boot.now());
        let patience = self.settings.node_timeout.as_millis() as i64 * 4;
        let deadline = deadline.map_or(1 << 52, |micros| micros / 1000 + patience);
        let mut command = Cmd::with_capacity(14, 512);
        command.arg("EVALSHA").arg(&self.scripts.acquire.sha).arg(3);
        command.arg(claim.name.as_str());
        command.arg(queue_key(claim.name.as_str())).arg(MEMORY);
        command
            .arg(&mark(&claim.id)[4..])
            .arg(attempt)
            .arg(px(claim));
        command.arg(manner.hint).arg(bucket(&claim.name));
        command
            .arg(u8::from(manner.waits))
            .arg(deadline)
            .arg(&rest[..]);
        command
    }

    /// Takes back an attempt, and waits for that as long as for any answer. What has no answer by then goes on behind.
    async fn undo(self: &Arc<Self>, nodes: Asked, claim: &Claim, attempt: u64) {
        let command = self.withdrawal(claim, Some(attempt), b"undo");
        let round = Round::new(Left(nodes.len()));
        let told = Arc::clone(&round);
        self.withdraw_at(nodes, command, claim, move |_, _| {
            told.count(|left| left.0 -= 1);
        });
        round.enough(self.settings.node_timeout).await;
    }

    /// The call that withdraws a claim, or one attempt of it.
    pub(crate) fn withdrawal(&self, claim: &Claim, attempt: Option<u64>, how: &[u8]) -> Cmd {
        let name = claim.name.as_str();
        let mut command = Cmd::with_capacity(7, 2 * name.len() + 200);
        command
            .arg("EVALSHA")
            .arg(&self.scripts.withdraw.sha)
            .arg(2);
        command.arg(name).arg(queue_key(name));
        command.arg(&whose(claim, attempt)[..]).arg(how);
        command
    }

    /// Withdraws at these nodes; `told` gets the index of each with its code, or what went wrong. What had no answer is sent
    /// again when the node is back.
    pub(crate) fn withdraw_at(
        &self,
        nodes: Asked,
        command: Cmd,
        claim: &Claim,
        told: impl Fn(usize, Result<i64, RedisError>) + Send + Sync + 'static,
    ) {
        let shared = Arc::new((command, told));
        let lease = claim.ttl.saturating_add(claim.lock_delay);
        for (node, link) in nodes {
            let asked = Arc::clone(&shared);
            let reply = move |answer: Result<Told<'_>, RedisError>| {
                let (command, told) = &*asked;
                let answer = answer.and_then(|answer| match answer.values {
                    [Value::Int(code)] => Ok(*code),
                    [Value::ServerError(error)] => Err(error.clone().into()),
                    other => Err(unexpected(other)),
                });
                if answer.is_err() {
                    node.owe(Clock::Boot.now() + lease, command.clone());
                }
                told(node.index, answer);
            };
            link.send(std::slice::from_ref(&shared.0), false, Box::new(reply));
        }
    }
}

/// A vote without a script: the lock if it is free, and the counter whether or not.
fn plainly(inner: &Inner, claim: &Claim, attempt: u64) -> [Cmd; 2] {
    let mut value = whose(claim, Some(attempt));
    value.extend_from_slice(b"1:0:");
    push_number(&mut value, px(claim));
    value.extend_from_slice(b":0:0:");
    push_rest(&mut value, claim, &inner.channel);
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

/// Whether so many votes are there, and for which token: the highest of those that say the least, and whether they all say
/// the same.
fn agreed(yes: &mut [(usize, u64)], quorum: usize) -> Option<(u64, bool)> {
    if yes.len() < quorum {
        return None;
    }
    yes.sort_unstable_by_key(|(_, counter)| *counter);
    // Perhaps others than the lowest agree.
    if let Some(same) = yes
        .windows(quorum)
        .find(|some| some[0].1 == some[quorum - 1].1)
    {
        return Some((same[0].1, true));
    }
    Some((yes[quorum - 1].1, false))
}

fn failed(node: &Node, name: &LockName, error: RedisError) -> Vote {
    Vote::Failed(explain(&node.name, "placing a claim", Some(name), error))
}

/// A vote that does not count: its reason.
fn void(node: &Node, why: &str) -> Vote {
    Vote::Failed(Error::unavailable(&node.name, "placing a claim", why))
}

const WAS_SET: &str = "its clock was set a moment ago";
const FORGOT: &str = "it has lost its memory";

fn read_plain(
    inner: &Inner,
    node: &Node,
    link: &Connection,
    told: &Told<'_>,
) -> Result<Vote, RedisError> {
    let [set, drawn] = &*told.values else {
        return Err(unexpected(told.values));
    };
    for answer in [set, drawn] {
        if let Value::ServerError(error) = answer {
            return Err(error.clone().into());
        }
    }
    let (Value::Int(counter), Some(micros)) = (drawn, told.micros) else {
        return Err(unexpected(told.values));
    };
    let judged = judge(inner, node, link, told, micros, *counter);
    Ok(judged.unwrap_or_else(|counter| match set {
        Value::Okay => Vote::Yes(counter),
        _ => Vote::Taken { counter, left: -1 },
    }))
}

fn read_script(
    inner: &Inner,
    node: &Node,
    link: &Connection,
    told: &Told<'_>,
) -> Result<Vote, RedisError> {
    let parts = match &*told.values {
        [Value::Array(parts)] => parts,
        [Value::ServerError(error)] => return Err(error.clone().into()),
        other => return Err(unexpected(other)),
    };
    let [
        Value::BulkString(word),
        Value::Int(counter),
        Value::Int(micros),
        Value::Int(left),
    ] = &parts[..]
    else {
        return Err(unexpected(parts));
    };
    if &word[..] == b"late" {
        node.told_time(inner, *micros, told.asked, told.heard);
        return Ok(void(node, "it took the request too late"));
    }
    let judged = judge(inner, node, link, told, *micros, *counter);
    Ok(judged.unwrap_or_else(|counter| match &word[..] {
        b"ok" => Vote::Yes(counter),
        _ => Vote::Taken {
            counter,
            left: *left,
        },
    }))
}

fn unexpected(answers: &[Value]) -> RedisError {
    crate::reply::unexpected(&Value::Array(answers.to_vec()))
}

/// Why an answer does not count as a vote; else its counter.
fn judge(
    inner: &Inner,
    node: &Node,
    link: &Connection,
    told: &Told<'_>,
    micros: i64,
    counter: i64,
) -> Result<Vote, u64> {
    if !node.told_time(inner, micros, told.asked, told.heard) {
        return Ok(void(node, WAS_SET));
    }
    let counter = u64::try_from(counter).unwrap_or(0);
    if counter < link.floor() {
        // Somebody emptied it, and no connection broke.
        tracing::warn!(node = %node.name, "the node has lost its memory");
        link.break_off();
        return Ok(void(node, FORGOT));
    }
    Err(counter)
}

#[cfg(test)]
mod tests {
    use super::agreed;

    #[test]
    fn a_majority_that_says_the_same_needs_no_second_round() {
        let of = |counters: &[u64], quorum| {
            let mut yes: Vec<_> = counters.iter().copied().enumerate().collect();
            agreed(&mut yes, quorum)
        };
        assert_eq!(of(&[7, 7], 3), None);
        assert_eq!(of(&[7, 7, 7], 3), Some((7, true)));
        assert_eq!(of(&[7, 9, 7], 3), Some((9, false)));
        assert_eq!(of(&[7, 9, 8, 7], 3), Some((8, false)));
        assert_eq!(of(&[1, 7, 9, 7, 7], 3), Some((7, true)));
    }
}
