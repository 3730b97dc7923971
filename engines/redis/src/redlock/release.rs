//! Withdrawing a claim everywhere, and taking the lock from a holder.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Evict, Leave, LockView, Withdrawn};
use fencelock_core::{Clock, Error, LockName, Result, Token};
use futures_util::future::join_all;
use redis::{Cmd, RedisError, Value};

use super::inspect::view;
use super::round::{Round, Tally};
use super::state::State;
use super::withdrawal::{withdraw_at, withdrawal};
use crate::keys::queue_key;
use crate::stored::{mark, millis};

const ACTION: &str = "withdrawing a claim";

/// How long at least a withdrawal waits for its quorum: unlike a grant, a late one is as good.
const TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) async fn withdraw(state: &State, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    if state.is_closed() {
        state.entries.remove(&claim.id);
        return Err(Error::Closed);
    }
    state.tokens.forget(claim.id);
    let withdrawn = match how {
        Leave::Release => everywhere(state, claim, b"release").await,
        Leave::Abandon => {
            let delay = millis(claim.lock_delay).to_string();
            everywhere(state, claim, delay.as_bytes()).await
        }
    };
    state.entries.remove(&claim.id);
    withdrawn
}

/// Withdraws at all nodes. Returns what a quorum says, or all nodes that reply in time.
async fn everywhere(state: &State, claim: &Claim, how: &[u8]) -> Result<Withdrawn> {
    let quorum = state.config.quorum;
    let command = withdrawal(state, claim, None, how);
    let members = state.members();
    let lease = claim.ttl.saturating_add(claim.lock_delay);
    for node in &state.nodes {
        if !members.iter().any(|(member, _)| member.index == node.index) {
            node.keep_withdrawal(Clock::Boot.now() + lease, command.clone());
        }
    }
    let round = Round::new(Withdrawals {
        quorum,
        left: members.len(),
        codes: [0; 5],
        failed: Vec::new(),
    });
    let counted = Arc::clone(&round);
    withdraw_at(members, command, claim, move |node, answer| {
        counted.count(|withdrawals| withdrawals.count(node, answer));
    });
    round.enough(state.config.node_timeout.max(TIMEOUT)).await;
    let (codes, failed) = {
        let mut withdrawals = round.tally.lock();
        (withdrawals.codes, std::mem::take(&mut withdrawals.failed))
    };
    let answered: usize = codes.iter().sum();
    if answered < quorum {
        let failed = failed
            .into_iter()
            .map(|(node, error)| (node, state.nodes[node].failed(ACTION, error)));
        return Err(state.too_few(ACTION, failed.collect()));
    }
    Ok(if codes[1] >= quorum {
        Withdrawn::Released
    } else if codes[2] > 0 {
        Withdrawn::LeftQueue
    } else if codes[4] > state.nodes.len() - quorum {
        Withdrawn::NotOwner
    } else {
        Withdrawn::Expired
    })
}

/// What the nodes say of a withdrawal.
#[derive(Debug)]
struct Withdrawals {
    quorum: usize,
    /// How many nodes have not replied.
    left: usize,
    /// How many nodes said each code.
    codes: [usize; 5],
    failed: Vec<(usize, RedisError)>,
}

impl Withdrawals {
    fn count(&mut self, node: usize, answer: std::result::Result<i64, RedisError>) {
        self.left -= 1;
        match answer {
            Ok(code) => {
                let at = usize::try_from(code).ok();
                if let Some(count) = at.and_then(|at| self.codes.get_mut(at)) {
                    *count += 1;
                }
            }
            Err(error) => self.failed.push((node, error)),
        }
    }
}

impl Tally for Withdrawals {
    fn is_enough(&self) -> bool {
        self.left == 0 || self.codes[1] >= self.quorum
    }
}

/// Takes the lock from the holder with this token, or asks it to release. Returns whether the token holds.
pub(crate) async fn evict(
    state: &State,
    name: &LockName,
    token: Token,
    how: Evict,
) -> Result<bool> {
    let LockView { holders, .. } = view(state, name, false).await?;
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
            .arg(&state.scripts.withdraw.sha)
            .arg(2)
            .arg(name.as_str())
            .arg(queue_key(name.as_str()))
            .arg(&prefix[..])
            .arg("lost"),
        Evict::Ask => command
            .arg(&state.scripts.ask.sha)
            .arg(1)
            .arg(name.as_str())
            .arg(&prefix[..]),
    };
    let members = state.members();
    let asked = members
        .iter()
        .map(|(_, connection)| connection.ask(&command));
    let answers = join_all(asked).await;
    if answers.iter().filter(|answer| answer.is_ok()).count() < state.config.quorum {
        return Err(state.too_few("evicting", Vec::new()));
    }
    // A node where the claim does not hold has nothing to evict: a quorum is now without it, or knows that it is asked.
    Ok(answers
        .iter()
        .any(|answer| matches!(answer, Ok(Value::Int(1)))))
}
