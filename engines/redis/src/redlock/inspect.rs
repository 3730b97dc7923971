//! Looking at locks, as a quorum of nodes has them, and evicting holders.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Cursor, Evict, Finding, HolderView, Inspect, LockView, Page};
use fencelock_core::support::Backoff;
use fencelock_core::{ClaimId, Clock, Error, LockName, Mode, Result, Token};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::{Cmd, Value};

use super::diagnose::findings;
use super::state::State;
use crate::error::{about, explain, unreadable};
use crate::keys::queue_key;
use crate::reply::{text, unexpected};
use crate::scan::{held, scan, scanned};
use crate::stored::{Stored, foreign_view, mark, waiter_view};

const ACTION: &str = "looking at lock";

/// The least time for which to look again while the replies do not decide.
const LOOKING: Duration = Duration::from_millis(500);

/// A lock as one node has it.
struct Seen {
    node: usize,
    now: u64,
    value: Option<Vec<u8>>,
    left: Option<Duration>,
    waiters: Vec<Value>,
}

impl Seen {
    fn read(node: usize, answer: Value) -> Option<Self> {
        let Value::Array(parts) = answer else {
            return None;
        };
        match <[Value; 4]>::try_from(parts) {
            Ok(
                [
                    Value::Int(now),
                    value,
                    Value::Int(left),
                    Value::Array(waiters),
                ],
            ) => Some(Self {
                node,
                now: u64::try_from(now).unwrap_or(0),
                value: match value {
                    Value::BulkString(bytes) => Some(bytes),
                    _ => None,
                },
                left: u64::try_from(left).ok().map(Duration::from_millis),
                waiters,
            }),
            _ => None,
        }
    }
}

/// Reads the lock at each node.
///
/// # Errors
/// If fewer nodes than the quorum reply.
async fn see(state: &State, name: &LockName) -> Result<Vec<Seen>> {
    let mut command = Cmd::with_capacity(5, 200);
    command.arg("EVALSHA").arg(&state.scripts.look.sha).arg(2);
    command.arg(name.as_str()).arg(queue_key(name.as_str()));
    let mut answers: FuturesUnordered<_> = state
        .members()
        .into_iter()
        .map(|(node, connection)| {
            let answer = connection.ask(&command);
            async move {
                let seen = answer.await.and_then(|answer| {
                    let error = unexpected(&answer);
                    Seen::read(node.index, answer).ok_or(error)
                });
                let failed = |error| explain(&node.name, ACTION, Some(name), error);
                seen.map_err(|error| (node.index, failed(error)))
            }
        })
        .collect();
    let (mut seen, mut failed) = (Vec::new(), Vec::new());
    let timeout = tokio::time::sleep(state.config.node_timeout);
    tokio::pin!(timeout);
    loop {
        let answer = tokio::select! {
            biased;
            answer = answers.next() => answer,
            () = &mut timeout => None,
        };
        match answer {
            Some(Ok(one)) => seen.push(one),
            Some(Err(error)) => failed.push(error),
            None => break,
        }
    }
    if seen.len() < state.config.quorum {
        return Err(state.too_few_besides(&about(ACTION, Some(name)), failed, &nodes(&seen)));
    }
    Ok(seen)
}

fn nodes(seen: &[Seen]) -> Vec<usize> {
    seen.iter().map(|seen| seen.node).collect()
}

/// The lock. Locks of other clients are included with `foreign`, or if clients of this library wait for them. A split vote or a
/// late reply is soon over, so this looks again for a while before it fails.
pub(crate) async fn view(state: &State, name: &LockName, foreign: bool) -> Result<LockView> {
    let begun = Clock::Boot.now();
    let longest = LOOKING.max(state.config.node_timeout * 2);
    let mut pauses = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
    loop {
        let failed = match see(state, name).await {
            Ok(seen) => match judge(state, name, &seen, foreign)? {
                Some(view) => return Ok(view),
                None => undecided(state, name, &seen),
            },
            Err(error) => error,
        };
        if Clock::Boot.now().since(begun) >= longest || !failed.is_retryable() {
            return Err(failed);
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

/// The error if the nodes without a reply decide who holds.
fn undecided(state: &State, name: &LockName, seen: &[Seen]) -> Error {
    let action = format!(
        "reading who holds lock {name}: the {} nodes that answer do not decide it",
        seen.len()
    );
    state.too_few_besides(&action, Vec::new(), &nodes(seen))
}

/// The votes of the nodes that replied.
#[derive(Default)]
struct Votes<'a> {
    by_claim: HashMap<ClaimId, Vec<HolderView>>,
    foreign: HashMap<&'a [u8], Vec<Option<Duration>>>,
    unreadable: usize,
}

impl<'a> Votes<'a> {
    fn of(seen: &'a [Seen]) -> Self {
        let mut votes = Self::default();
        for seen in seen {
            let Some(value) = &seen.value else { continue };
            match Stored::parse(value) {
                Stored::Exclusive(hold) => {
                    let holder = hold.view(Mode::Exclusive, seen.left, seen.now);
                    if let Some(claim) = holder.claim {
                        votes.by_claim.entry(claim).or_default().push(holder);
                    }
                }
                Stored::Foreign => votes.foreign.entry(value).or_default().push(seen.left),
                Stored::Shared(_) | Stored::Unreadable => votes.unreadable += 1,
            }
        }
        votes
    }
}

/// The lock by the votes of these nodes; `None` if the nodes without a reply decide.
fn judge(state: &State, name: &LockName, seen: &[Seen], foreign: bool) -> Result<Option<LockView>> {
    let quorum = state.config.quorum;
    let foreign = foreign || seen.iter().any(|seen| !seen.waiters.is_empty());
    let silent = state.nodes.len() - seen.len();
    let is_open = |votes: usize| votes < quorum && votes + silent >= quorum;
    let votes = Votes::of(seen);
    if votes.unreadable >= quorum {
        return Err(unreadable(&state.config.store, name));
    }
    let ours = votes.by_claim.values().map(Vec::len);
    let others = votes.foreign.values().map(Vec::len).filter(|_| foreign);
    if ours.chain(others).chain([votes.unreadable]).any(is_open) {
        return Ok(None);
    }
    let mut view = LockView::free(name.clone());
    for (_, votes) in votes.by_claim {
        if votes.len() >= quorum {
            let Some(holder) = holder(votes, quorum, is_open) else {
                return Ok(None);
            };
            view.holders.push(holder);
        }
    }
    if view.holders.is_empty() && foreign {
        let others = votes.foreign.into_iter();
        let others = others.filter(|(_, votes)| votes.len() >= quorum);
        let views =
            others.map(|(value, votes)| foreign_view(value, votes.into_iter().flatten().max()));
        view.holders.extend(views);
    }
    let queues = seen.iter().map(|seen| &seen.waiters);
    if let Some(longest) = queues.max_by_key(|queue| queue.len()) {
        let waiters = longest
            .iter()
            .filter_map(|waiter| waiter_view(&text(waiter)?));
        view.waiters.extend(waiters);
    }
    Ok(Some(view))
}

/// The holder that a quorum voted for; `None` if the nodes without a reply decide about its token.
fn holder(
    mut votes: Vec<HolderView>,
    quorum: usize,
    is_open: impl Fn(usize) -> bool,
) -> Option<HolderView> {
    let count = |token: Token| {
        let same = votes.iter().filter(|holder| holder.token == Some(token));
        same.count()
    };
    let tokens: BTreeSet<Token> = votes.iter().filter_map(|holder| holder.token).collect();
    if tokens.iter().any(|token| is_open(count(*token))) {
        return None;
    }
    let token = tokens.into_iter().find(|token| count(*token) >= quorum);
    // Take the lease that a quorum keeps.
    votes.sort_by_key(|holder| std::cmp::Reverse(holder.ttl_left));
    let mut holder = votes.swap_remove(quorum - 1);
    holder.token = token;
    Some(holder)
}

/// Where a list continues.
struct Position {
    node: usize,
    /// How many nodes to list, from this one on.
    left: usize,
    /// The node's own cursor.
    cursor: u64,
}

impl Position {
    /// Where a listing of this many nodes begins.
    const fn first(needed: usize) -> Self {
        Self {
            node: 0,
            left: needed,
            cursor: 0,
        }
    }

    /// Reads `<node>:<left>:<cursor>`.
    fn read(at: &Cursor, needed: usize) -> Option<Self> {
        let mut parts = at.0.splitn(3, ':');
        let position = Self {
            node: parts.next()?.parse().ok()?,
            left: parts.next()?.parse().ok()?,
            cursor: parts.next()?.parse().ok()?,
        };
        (1..=needed).contains(&position.left).then_some(position)
    }
}

#[async_trait]
impl Inspect for State {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        view(self, name, true).await
    }

    /// Lists one node after another, until the rest cannot be a quorum. So a lock may be listed more than once.
    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        let needed = self.nodes.len() - self.config.quorum + 1;
        let position = match &at {
            None => Position::first(needed),
            Some(at) => Position::read(at, needed).ok_or_else(|| at.refused())?,
        };
        let Position { node, left, cursor } = position;
        let members = self.members();
        let mut rest = members.iter().filter(|(member, _)| member.index >= node);
        let Some((asked, connection)) = rest.next() else {
            // A cursor that leads beyond the servers is no failure of theirs.
            return Err(match at {
                Some(at) if members.len() >= self.config.quorum => at.refused(),
                _ => self.too_few("listing locks", Vec::new()),
            });
        };
        let cursor = if asked.index == node { cursor } else { 0 };
        let answer = connection.ask(&scan(prefix, cursor, limit)).await;
        let (next, names) = answer
            .and_then(|answer| scanned(&answer))
            .map_err(|error| asked.failed("listing locks", error))?;
        let looks = names
            .into_iter()
            .map(|name| async move { view(self, &name, false).await.map(Some) });
        let items = held(looks).await?;
        let next = match next.as_str() {
            "0" => (left > 1).then(|| format!("{}:{}:0", asked.index + 1, left - 1)),
            next => Some(format!("{}:{left}:{next}", asked.index)),
        };
        Ok(Page::new(items, next.map(Cursor)))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let LockView { holders, .. } = view(self, name, false).await?;
        let holder = holders.iter().find(|holder| holder.token == Some(token));
        let Some(claim) = holder.and_then(|holder| holder.claim) else {
            return Ok(false);
        };
        let mut prefix = mark(&claim).to_vec();
        prefix.push(b':');
        let mut command = Cmd::with_capacity(7, 300);
        command.arg("EVALSHA");
        match how {
            Evict::Release => command
                .arg(&self.scripts.withdraw.sha)
                .arg(2)
                .arg(name.as_str())
                .arg(queue_key(name.as_str()))
                .arg(&prefix[..])
                .arg("lost"),
            Evict::Ask => command
                .arg(&self.scripts.ask.sha)
                .arg(1)
                .arg(name.as_str())
                .arg(&prefix[..]),
        };
        let members = self.members();
        let asked = members
            .iter()
            .map(|(_, connection)| connection.ask(&command));
        let answers = join_all(asked).await;
        if answers.iter().filter(|answer| answer.is_ok()).count() < self.config.quorum {
            return Err(self.too_few("evicting", Vec::new()));
        }
        // A node where the claim does not hold has nothing to evict: a quorum is now without the claim, or knows that its
        // holder was asked.
        Ok(answers
            .iter()
            .any(|answer| matches!(answer, Ok(Value::Int(1)))))
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(findings(self).await)
    }
}
