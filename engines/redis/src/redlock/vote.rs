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
use fencelock_core::{BootInstant, Clock, Error, LockName, Token, Tokens};
use futures_util::stream::StreamExt;
use redis::{Cmd, Pipeline, RedisError, Value};

use super::link::Link;
use super::node::{BUCKETS, MEMORY, Node, micros};
use super::{Calls, Inner, behind, launch};
use crate::refusal::explain;
use crate::slots::line_key;
use crate::value::{mark, push_number, push_rest, px};

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

type Votes = Calls<(usize, Vote)>;

/// What was said so far.
#[derive(Debug, Default)]
struct Ballot {
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

/// The counter that a name uses.
fn bucket(name: &LockName) -> usize {
    // FNV-1a.
    let hash = name
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    (hash >> 32) as usize % BUCKETS
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
        let voters: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|node| Some((Arc::clone(node), node.voter(asked_at)?)))
            .collect();
        if voters.len() < quorum {
            return Outcome::Failed(self.too_few("placing a claim", Vec::new()));
        }
        let attempt = self.next_attempt();
        let mut ballot = Ballot::default();
        let mut votes = Votes::new();
        let mut rest = &voters[..];
        if manner.gate {
            let (first, others) = (&voters[0], &voters[1..]);
            rest = others;
            let one = self.votes(std::slice::from_ref(first), claim, attempt, manner);
            votes = one;
            self.gather(&mut votes, &mut ballot, |ballot| ballot.against() > 0)
                .await;
            if !ballot.taken.is_empty() {
                return Outcome::Taken(ballot.left);
            }
        }
        votes.extend(self.votes(rest, claim, attempt, manner));
        let hopeless = voters.len() - quorum;
        self.gather(&mut votes, &mut ballot, |ballot| {
            ballot.yes.len() >= quorum || ballot.against() > hopeless
        })
        .await;
        if let Some((token, agreed)) = agreed(&mut ballot.yes, quorum) {
            #[cfg(fencelock_planted)]
            let agreed = agreed || fencelock_core::planted::is("token-before-write-back");
            let marked = agreed || self.mark(&voters, &ballot, claim, attempt, token).await;
            if marked {
                behind(votes);
                return Outcome::Granted(Grant {
                    tokens: Tokens::one(Token(token)),
                    counted_from: asked_at,
                    lease: claim.ttl,
                    recorded: !manner.plain || !agreed,
                });
            }
        }
        behind(votes);
        let undone: Vec<_> = voters
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
        voters: &[(Arc<Node>, Arc<Link>)],
        ballot: &Ballot,
        claim: &Claim,
        attempt: u64,
        token: u64,
    ) -> bool {
        let asked = voters
            .iter()
            .filter(|(node, _)| !ballot.taken.contains(&node.index));
        let mut marks = launch(asked.map(|(node, link)| {
            let mut command = Cmd::with_capacity(10, 256);
            command.arg("EVALSHA").arg(&self.scripts.mark.sha).arg(2);
            command.arg(claim.name.as_str()).arg(MEMORY);
            command.arg(&whose(claim, Some(attempt))[..]).arg(token);
            command.arg(bucket(&claim.name)).arg(px(claim));
            command.arg(u8::from(ballot.yes.contains(&(node.index, token))));
            let link = Arc::clone(link);
            async move { matches!(link.ask(&command).await, Ok(Value::Int(1))) }
        }));
        let timeout = tokio::time::sleep(self.settings.node_timeout);
        tokio::pin!(timeout);
        let (mut yes, mut left) = (0, marks.len());
        while yes < self.settings.quorum && yes + left >= self.settings.quorum {
            tokio::select! {
                biased;
                mark = marks.next() => match mark {
                    Some(mark) => {
                        yes += usize::from(mark);
                        left -= 1;
                    }
                    None => break,
                },
                () = &mut timeout => break,
            }
        }
        behind(marks);
        yes >= self.settings.quorum
    }

    /// Counts votes until it is enough, or the time for an answer is over.
    async fn gather(
        &self,
        votes: &mut Votes,
        ballot: &mut Ballot,
        enough: impl Fn(&Ballot) -> bool,
    ) {
        let timeout = tokio::time::sleep(self.settings.node_timeout);
        tokio::pin!(timeout);
        while !enough(ballot) {
            tokio::select! {
                biased;
                vote = votes.next() => match vote {
                    Some((node, vote)) => ballot.count(node, vote),
                    None => return,
                },
                () = &mut timeout => return,
            }
        }
    }

    fn votes(
        self: &Arc<Self>,
        voters: &[(Arc<Node>, Arc<Link>)],
        claim: &Claim,
        attempt: u64,
        manner: Manner,
    ) -> Votes {
        if manner.plain {
            let commands = Arc::new(self.plainly(claim, attempt));
            return launch(voters.iter().map(|(node, link)| {
                let (inner, node, link) = (Arc::clone(self), Arc::clone(node), Arc::clone(link));
                let (commands, name) = (Arc::clone(&commands), claim.name.clone());
                async move {
                    let asked = Clock::Boot.now();
                    let answers = link.ask_all(&commands).await;
                    let vote = read_plain(&inner, &node, &link, asked, answers);
                    let vote = vote.unwrap_or_else(|error| failed(&node, &name, error));
                    (node.index, vote)
                }
            }));
        }
        let mut rest = Vec::with_capacity(64 + claim.owner.len());
        push_rest(&mut rest, claim, &self.channel);
        let line = line_key(claim.name.as_str());
        launch(voters.iter().map(|(node, link)| {
            let deadline = node.clock.at_most(Clock::Boot.now());
            let patience = self.settings.node_timeout.as_millis() as i64 * 4;
            let deadline = deadline.map_or(1 << 52, |micros| micros / 1000 + patience);
            let mut command = Cmd::with_capacity(14, 512);
            command.arg("EVALSHA").arg(&self.scripts.acquire.sha).arg(3);
            command.arg(claim.name.as_str()).arg(&line).arg(MEMORY);
            command
                .arg(&mark(&claim.id)[4..])
                .arg(attempt)
                .arg(px(claim));
            command.arg(manner.hint).arg(bucket(&claim.name));
            command
                .arg(u8::from(manner.waits))
                .arg(deadline)
                .arg(&rest[..]);
            let (inner, node, link) = (Arc::clone(self), Arc::clone(node), Arc::clone(link));
            let name = claim.name.clone();
            async move {
                let asked = Clock::Boot.now();
                let answer = link.ask(&command).await;
                let vote =
                    answer.and_then(|answer| read_script(&inner, &node, &link, asked, &answer));
                let vote = vote.unwrap_or_else(|error| failed(&node, &name, error));
                (node.index, vote)
            }
        }))
    }

    /// The lock if it is free, the counter whether or not, and the time.
    fn plainly(&self, claim: &Claim, attempt: u64) -> Pipeline {
        let mut value = whose(claim, Some(attempt));
        value.extend_from_slice(b"1:0:");
        push_number(&mut value, px(claim));
        value.extend_from_slice(b":0:0:");
        push_rest(&mut value, claim, &self.channel);
        let mut commands = Pipeline::with_capacity(3);
        let mut set = Cmd::with_capacity(6, claim.name.as_str().len() + value.len() + 80);
        set.arg("SET").arg(claim.name.as_str()).arg(&value[..]);
        set.arg("NX").arg("PX").arg(px(claim));
        commands.add_command(set);
        let mut draw = Cmd::with_capacity(4, 64);
        draw.arg("HINCRBY")
            .arg(MEMORY)
            .arg(bucket(&claim.name))
            .arg(1);
        commands.add_command(draw);
        commands.add_command(redis::cmd("TIME"));
        commands
    }

    /// Takes back an attempt, and waits for that as long as for any answer.
    async fn undo(
        self: &Arc<Self>,
        nodes: Vec<(Arc<Node>, Arc<Link>)>,
        claim: &Claim,
        attempt: u64,
    ) {
        let command = self.withdrawal(claim, Some(attempt), b"undo");
        let mut undone = self.withdraw_at(nodes, command, claim);
        let all = async { while undone.next().await.is_some() {} };
        let timeout = self.settings.node_timeout;
        // What has no answer by then goes on behind.
        let late = tokio::time::timeout(timeout, all).await.is_err();
        if late {
            behind(undone);
        }
    }

    /// The call that withdraws a claim, or one attempt of it.
    pub(crate) fn withdrawal(&self, claim: &Claim, attempt: Option<u64>, how: &[u8]) -> Cmd {
        let name = claim.name.as_str();
        let mut command = Cmd::with_capacity(7, 2 * name.len() + 200);
        command
            .arg("EVALSHA")
            .arg(&self.scripts.withdraw.sha)
            .arg(2);
        command.arg(name).arg(line_key(name));
        command.arg(&whose(claim, attempt)[..]).arg(how);
        command
    }

    /// Withdraws at these nodes; each answers with its code, or what went wrong. What had no answer is sent again when the
    /// node is back.
    pub(crate) fn withdraw_at(
        &self,
        nodes: Vec<(Arc<Node>, Arc<Link>)>,
        command: Cmd,
        claim: &Claim,
    ) -> Calls<(usize, Result<i64, RedisError>)> {
        let command = Arc::new(command);
        let lease = claim.ttl.saturating_add(claim.lock_delay);
        launch(nodes.into_iter().map(|(node, link)| {
            let command = Arc::clone(&command);
            async move {
                let answer = match link.ask(&command).await {
                    Ok(Value::Int(code)) => Ok(code),
                    Ok(other) => Err(crate::connection::odd(&other)),
                    Err(error) => Err(error),
                };
                if answer.is_err() {
                    node.owe(Clock::Boot.now() + lease, Cmd::clone(&command));
                }
                (node.index, answer)
            }
        }))
    }
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
    link: &Link,
    asked: BootInstant,
    answers: Result<Vec<Value>, RedisError>,
) -> Result<Vote, RedisError> {
    let heard = Clock::Boot.now();
    let answers = answers?;
    let [set, drawn, time] = &answers[..] else {
        return Err(crate::connection::odd(&Value::Array(answers)));
    };
    for answer in [set, drawn] {
        if let Value::ServerError(error) = answer {
            return Err(error.clone().into());
        }
    }
    let (Value::Int(counter), Some(micros)) = (drawn, micros(time)) else {
        return Err(crate::connection::odd(&Value::Array(answers)));
    };
    Ok(
        judge(inner, node, link, (asked, heard), micros, *counter).unwrap_or_else(|counter| {
            match set {
                Value::Okay => Vote::Yes(counter),
                _ => Vote::Taken { counter, left: -1 },
            }
        }),
    )
}

fn read_script(
    inner: &Inner,
    node: &Node,
    link: &Link,
    asked: BootInstant,
    answer: &Value,
) -> Result<Vote, RedisError> {
    let heard = Clock::Boot.now();
    let odd = || Err(crate::connection::odd(answer));
    let Value::Array(parts) = answer else {
        return odd();
    };
    let [
        Value::BulkString(word),
        Value::Int(counter),
        Value::Int(micros),
        Value::Int(left),
    ] = &parts[..]
    else {
        return odd();
    };
    if &word[..] == b"late" {
        node.told_time(inner, *micros, asked, heard);
        return Ok(void(node, "it took the request too late"));
    }
    let judged = judge(inner, node, link, (asked, heard), *micros, *counter);
    Ok(judged.unwrap_or_else(|counter| match &word[..] {
        b"ok" => Vote::Yes(counter),
        _ => Vote::Taken {
            counter,
            left: *left,
        },
    }))
}

/// Why an answer does not count as a vote; else its counter.
fn judge(
    inner: &Inner,
    node: &Node,
    link: &Link,
    (asked, heard): (BootInstant, BootInstant),
    micros: i64,
    counter: i64,
) -> Result<Vote, u64> {
    if !node.told_time(inner, micros, asked, heard) {
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
