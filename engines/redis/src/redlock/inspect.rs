//! Looking at locks over a quorum, and taking them from their holders.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, HolderView, LockView, Page};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Mode, Result, Token};
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use redis::{Cmd, Value};

use super::Inner;
use crate::error::{explain, unreadable};
use crate::keys::queue_key;
use crate::reply::text;
use crate::scan::{Pauses, scan, scanned};
use crate::stored::{Stored, foreign_view, mark, waiter_view};

/// For how long a look goes on at least while the answers do not suffice.
const LOOKING: Duration = Duration::from_millis(500);

/// What one node has.
struct Seen {
    node: usize,
    now: u64,
    value: Option<Vec<u8>>,
    left: Option<Duration>,
    waiters: Vec<Value>,
}

impl Seen {
    fn new(node: usize, answer: Value) -> Option<Self> {
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

impl Inner {
    /// What each node says. An error if they are fewer than the quorum.
    async fn see(&self, name: &LockName) -> Result<Vec<Seen>> {
        let action = "looking at a lock";
        let mut command = Cmd::with_capacity(5, 200);
        command.arg("EVALSHA").arg(&self.scripts.look.sha).arg(2);
        command.arg(name.as_str()).arg(queue_key(name.as_str()));
        let mut answers: FuturesUnordered<_> = self
            .members()
            .into_iter()
            .map(|(node, link)| {
                let answer = link.ask(&command);
                async move {
                    let seen = answer.await.and_then(|answer| {
                        let shown = crate::reply::unexpected(&answer);
                        Seen::new(node.index, answer).ok_or(shown)
                    });
                    let failed = |error| explain(&node.name, action, Some(name), error);
                    seen.map_err(|error| (node.index, failed(error)))
                }
            })
            .collect();
        let (mut seen, mut failed) = (Vec::new(), Vec::new());
        let timeout = tokio::time::sleep(self.settings.node_timeout);
        tokio::pin!(timeout);
        loop {
            let answer = tokio::select! {
                biased;
                answer = answers.next() => answer,
                () = &mut timeout => None,
            };
            match answer {
                Some(Ok(told)) => seen.push(told),
                Some(Err(error)) => failed.push(error),
                None => break,
            }
        }
        if seen.len() < self.settings.quorum {
            let answered: Vec<usize> = seen.iter().map(|seen| seen.node).collect();
            return Err(self.too_few_but(action, failed, &answered));
        }
        Ok(seen)
    }

    /// The lock; without others' if only ours are wanted. Votes that are split, and answers that come late, are over in a
    /// moment: so it looks again for a while before it says that the answers do not suffice.
    async fn view(&self, name: &LockName, foreigners: bool) -> Result<LockView> {
        let begun = Clock::Boot.now();
        let mut pauses = Pauses::new();
        loop {
            let failed = match self.see(name).await {
                Ok(seen) => match self.judge(name, &seen, foreigners)? {
                    Some(view) => return Ok(view),
                    None => self.undecided(name, &seen),
                },
                Err(error) => error,
            };
            if self.is_over(begun) || !failed.is_transient() {
                return Err(failed);
            }
            pauses.next().await;
        }
    }

    /// Those that do not answer decide who holds.
    fn undecided(&self, name: &LockName, seen: &[Seen]) -> Error {
        let action = format!(
            "telling who holds lock {name} by {} nodes, which do not agree",
            seen.len()
        );
        let answered: Vec<usize> = seen.iter().map(|seen| seen.node).collect();
        self.too_few_but(&action, Vec::new(), &answered)
    }

    fn is_over(&self, begun: BootInstant) -> bool {
        Clock::Boot.now().since(begun) >= LOOKING.max(self.settings.node_timeout * 2)
    }

    /// The lock by what these nodes have. Only they have a vote; `None` if it is the others' votes that decide.
    fn judge(&self, name: &LockName, seen: &[Seen], foreigners: bool) -> Result<Option<LockView>> {
        let quorum = self.settings.quorum;
        let silent = self.nodes.len() - seen.len();
        let is_open = |votes: usize| votes < quorum && votes + silent >= quorum;
        let mut view = LockView::free(name.clone());
        let mut unreadable_at = 0;
        let mut by_claim: HashMap<ClaimId, Vec<HolderView>> = HashMap::new();
        let mut others: HashMap<&[u8], Vec<Option<Duration>>> = HashMap::new();
        for seen in seen {
            let Some(value) = &seen.value else { continue };
            match Stored::parse(value) {
                Stored::Exclusive(hold) => {
                    let hold = hold.view(Mode::Exclusive, seen.left, seen.now);
                    if let Some(claim) = hold.claim {
                        by_claim.entry(claim).or_default().push(hold);
                    }
                }
                Stored::Foreign => others.entry(value).or_default().push(seen.left),
                Stored::Shared(_) | Stored::Unreadable => unreadable_at += 1,
            }
        }
        if unreadable_at >= quorum {
            return Err(unreadable(&self.settings.store, name));
        }
        let ours = by_claim.values().map(Vec::len);
        let theirs = others.values().map(Vec::len).filter(|_| foreigners);
        if ours.chain(theirs).chain([unreadable_at]).any(is_open) {
            return Ok(None);
        }
        for (_, mut votes) in by_claim {
            if votes.len() < quorum {
                continue;
            }
            let of = |token: Token| {
                let same = votes.iter().filter(|hold| hold.token == Some(token));
                same.count()
            };
            let tokens: BTreeSet<Token> = votes.iter().filter_map(|hold| hold.token).collect();
            if tokens.iter().any(|token| is_open(of(*token))) {
                return Ok(None);
            }
            let token = tokens.into_iter().find(|token| of(*token) >= quorum);
            // What a quorum keeps it for.
            votes.sort_by_key(|hold| std::cmp::Reverse(hold.ttl_left));
            let mut hold = votes.swap_remove(quorum - 1);
            hold.token = token;
            view.holders.push(hold);
        }
        if view.holders.is_empty() && foreigners {
            for (value, votes) in others {
                if votes.len() >= quorum {
                    let left = votes.into_iter().flatten().max();
                    view.holders.push(foreign_view(value, left));
                }
            }
        }
        let lines = seen.iter().map(|seen| &seen.waiters);
        if let Some(longest) = lines.max_by_key(|line| line.len()) {
            let waiters = longest
                .iter()
                .filter_map(|waiter| waiter_view(&text(waiter)?));
            view.waiters.extend(waiters);
        }
        Ok(Some(view))
    }

    pub(super) async fn look_until(
        &self,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let mut pauses = Pauses::new();
        loop {
            let view = self.view(name, true).await?;
            if unlike.is_none_or(|token| view.token() != token) {
                return Ok(view);
            }
            pauses.next().await;
        }
    }

    /// One node after the other, until no quorum can be among the rest; so a lock may be listed more than once. The cursor
    /// is the node, how many are to be asked from it on, and the node's own cursor.
    pub(super) async fn list_part(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let needed = self.nodes.len() - self.settings.quorum + 1;
        let at = at.map_or_else(|| format!("0:{needed}:0"), |at| at.0);
        let mut parts = at.splitn(3, ':');
        let mut number = |default: usize| {
            let part = parts.next().and_then(|part| part.parse().ok());
            part.unwrap_or(default)
        };
        let (node, left) = (number(0), number(needed));
        let cursor = parts.next().unwrap_or("0");
        let members = self.members();
        let mut members = members.iter().filter(|(member, _)| member.index >= node);
        let Some((asked, link)) = members.next() else {
            return Err(self.too_few("listing locks", Vec::new()));
        };
        let cursor = if asked.index == node { cursor } else { "0" };
        let failed = |error| asked.failed("listing locks", error);
        let answer = link.ask(&scan(prefix, cursor, limit)).await;
        let (next, names) = answer.and_then(|answer| scanned(&answer)).map_err(failed)?;
        let looks = names
            .into_iter()
            .map(|name| async move { self.view(&name, false).await });
        let mut looks = stream::iter(looks).buffered(64);
        let mut items = Vec::new();
        while let Some(view) = looks.next().await {
            match view {
                Ok(view) => {
                    if !view.holders.is_empty() {
                        items.push(view);
                    }
                }
                Err(Error::NotALock { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let next = match next.as_str() {
            "0" => (left > 1).then(|| format!("{}:{}:0", asked.index + 1, left - 1)),
            next => Some(format!("{}:{left}:{next}", asked.index)),
        };
        Ok(Page {
            items,
            next: next.map(Cursor),
        })
    }

    pub(super) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let view = self.view(name, false).await?;
        let holder = view
            .holders
            .iter()
            .find(|holder| holder.token == Some(token));
        let Some(claim) = holder.and_then(|holder| holder.claim) else {
            return Ok(false);
        };
        let mut whose = mark(&claim).to_vec();
        whose.push(b':');
        let mut command = Cmd::with_capacity(7, 300);
        command.arg("EVALSHA");
        match how {
            Evict::Release => command.arg(&self.scripts.withdraw.sha).arg(2),
            Evict::Ask => command.arg(&self.scripts.ask.sha).arg(1),
        };
        command.arg(name.as_str());
        if how == Evict::Release {
            command.arg(queue_key(name.as_str()));
        }
        command.arg(&whose[..]);
        if how == Evict::Release {
            command.arg("lost");
        }
        let members = self.members();
        let asked = members.iter().map(|(_, link)| link.ask(&command));
        let answers = futures_util::future::join_all(asked).await;
        let answered = answers.iter().filter(|answer| answer.is_ok()).count();
        if answered < self.settings.quorum {
            return Err(self.too_few("evicting", Vec::new()));
        }
        let done = answers
            .iter()
            .filter(|answer| matches!(answer, Ok(Value::Int(1))));
        // Where it did not hold there is nothing to evict; a quorum of nodes is without it now, or knows that it is asked.
        Ok(done.count() > 0)
    }
}
