//! Looking at locks over a quorum, and taking them from their holders.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Cursor, Evict, HolderView, LockView, Page};
use fencelock_core::{ClaimId, LockName, Mode, Result, Token};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Value};

use super::{Inner, behind, launch};
use crate::inspect::{Pauses, scan, scanned, text};
use crate::refusal::{explain, unreadable};
use crate::slots::line_key;
use crate::value::{Stored, foreign_view, mark, waiter_view};

/// What one node has.
struct Seen {
    now: u64,
    value: Option<Vec<u8>>,
    left: Option<Duration>,
    waiters: Vec<Value>,
}

impl Seen {
    fn new(answer: Value) -> Option<Self> {
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
    /// What each node says, by index. An error if they are fewer than the quorum.
    async fn see(&self, name: &LockName) -> Result<Vec<(usize, Seen)>> {
        let action = "looking at a lock";
        let mut command = Cmd::with_capacity(5, 200);
        command.arg("EVALSHA").arg(&self.scripts.look.sha).arg(2);
        command.arg(name.as_str()).arg(line_key(name.as_str()));
        let command = Arc::new(command);
        let mut answers = launch(self.members().into_iter().map(|(node, link)| {
            let (command, name) = (Arc::clone(&command), name.clone());
            async move {
                let answer = link.ask(&command).await;
                let seen = answer.and_then(|answer| {
                    let shown = crate::connection::odd(&answer);
                    Seen::new(answer).ok_or(shown)
                });
                let failed = |error| explain(&node.name, action, Some(&name), error);
                (node.index, seen.map_err(failed))
            }
        }));
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
                Some((node, Ok(told))) => seen.push((node, told)),
                Some((node, Err(error))) => failed.push((node, error)),
                None => break,
            }
        }
        behind(answers);
        if seen.len() < self.settings.quorum {
            return Err(self.too_few(action, failed));
        }
        Ok(seen)
    }

    /// The lock, and at which node the holder is seen first; without others' if only ours are wanted.
    async fn view(&self, name: &LockName, foreigners: bool) -> Result<(LockView, Option<usize>)> {
        let seen = self.see(name).await?;
        let quorum = self.settings.quorum;
        // Who did not answer may have it, too.
        let silent = self.nodes.len() - seen.len();
        let mut view = LockView::free(name.clone());
        let mut first = None;
        let mut unreadable_at = 0;
        let mut by_claim: HashMap<ClaimId, Vec<(usize, HolderView)>> = HashMap::new();
        let mut others: HashMap<&[u8], Vec<(usize, Option<Duration>)>> = HashMap::new();
        for (node, seen) in &seen {
            let Some(value) = &seen.value else { continue };
            match Stored::parse(value) {
                Stored::Alone(hold) => {
                    let hold = hold.view(Mode::Exclusive, seen.left, seen.now);
                    if let Some(claim) = hold.claim {
                        by_claim.entry(claim).or_default().push((*node, hold));
                    }
                }
                Stored::Foreign => others.entry(value).or_default().push((*node, seen.left)),
                Stored::Readers(_) | Stored::Unreadable => unreadable_at += 1,
            }
        }
        if unreadable_at >= quorum {
            return Err(unreadable(&self.settings.store, name));
        }
        for (_, mut votes) in by_claim {
            if votes.len() + silent < quorum {
                continue;
            }
            let told = |token: &Token| {
                let same = votes.iter().filter(|(_, hold)| hold.token == Some(*token));
                same.count() + silent >= quorum
            };
            let tokens: BTreeSet<Token> = votes.iter().filter_map(|(_, hold)| hold.token).collect();
            let token = tokens.into_iter().rev().find(told);
            // What a quorum keeps it for.
            votes.sort_by_key(|(_, hold)| std::cmp::Reverse(hold.ttl_left));
            first = votes.iter().map(|(node, _)| *node).min();
            let (_, mut hold) = votes.swap_remove(quorum.min(votes.len()) - 1);
            hold.token = token;
            view.holders.push(hold);
        }
        if view.holders.is_empty() && foreigners {
            for (value, votes) in others {
                if votes.len() + silent >= quorum {
                    let left = votes.iter().filter_map(|(_, left)| *left).max();
                    view.holders.push(foreign_view(value, left));
                }
            }
        }
        let lines = seen.iter().map(|(_, seen)| &seen.waiters);
        if let Some(longest) = lines.max_by_key(|line| line.len()) {
            let waiters = longest
                .iter()
                .filter_map(|waiter| waiter_view(&text(waiter)));
            view.waiters.extend(waiters);
        }
        Ok((view, first))
    }

    pub(super) async fn look_until(
        &self,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let mut pauses = Pauses::new();
        loop {
            let (view, _) = self.view(name, true).await?;
            if unlike.is_none_or(|token| view.token() != token) {
                return Ok(view);
            }
            pauses.next().await;
        }
    }

    /// One node after the other; a lock is listed at the first that has it. The cursor is the node and its own cursor.
    pub(super) async fn list_part(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let at = at.map_or_else(|| "0:0".to_owned(), |at| at.0);
        let (node, cursor) = at.split_once(':').unwrap_or(("0", "0"));
        let node: usize = node.parse().unwrap_or(0);
        let members = self.members();
        if members.len() < self.settings.quorum {
            return Err(self.too_few("listing locks", Vec::new()));
        }
        let after =
            |node: usize| (node + 1 < self.nodes.len()).then(|| Cursor(format!("{}:0", node + 1)));
        let Some((asked, link)) = members.iter().find(|(member, _)| member.index == node) else {
            let (items, next) = (Vec::new(), after(node));
            return Ok(Page { items, next });
        };
        let failed = |error| asked.failed("listing locks", error);
        let answer = link.ask(&scan(prefix, cursor, limit)).await;
        let (next, names) = answer.and_then(|answer| scanned(&answer)).map_err(failed)?;
        let looks = names
            .into_iter()
            .map(|name| async move { self.view(&name, false).await });
        let mut looks = stream::iter(looks).buffered(16);
        let mut items = Vec::new();
        while let Some(view) = looks.next().await {
            match view {
                Ok((view, first)) => {
                    if first == Some(node) && !view.holders.is_empty() {
                        items.push(view);
                    }
                }
                Err(fencelock_core::Error::NotALock { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let next = match next.as_str() {
            "0" => after(node),
            next => Some(Cursor(format!("{node}:{next}"))),
        };
        Ok(Page { items, next })
    }

    pub(super) async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        let (view, _) = self.view(name, false).await?;
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
            command.arg(line_key(name.as_str()));
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
