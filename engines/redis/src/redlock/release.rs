//! Withdrawing a claim everywhere.

use crate::error::about;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{Clock, Error, Result};
use redis::RedisError;

use super::round::{Round, Tally};
use super::state::State;
use super::withdrawal::{withdraw_at, withdrawal};
use crate::stored::millis;

const ACTION: &str = "releasing lock";

/// The least time that a withdrawal waits for its quorum. Unlike a grant, a late withdrawal is as good as an early one.
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
            let delay = match claim.lock_delay.is_zero() {
                true => Duration::ZERO,
                // The core ends a hold a margin before its lease ends. The servers do not prolong the lease here.
                false => claim.lock_delay + claim.ttl / 50 + Duration::from_millis(10),
            };
            let delay = millis(delay).to_string();
            everywhere(state, claim, delay.as_bytes()).await
        }
    };
    state.entries.remove(&claim.id);
    withdrawn
}

/// Withdraws at all nodes. Returns the result of a quorum, or of all nodes that reply in time.
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
        return Err(state.too_few(&about(ACTION, Some(&claim.name)), failed.collect()));
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

/// The answers of the nodes to a withdrawal.
#[derive(Debug)]
struct Withdrawals {
    quorum: usize,
    /// How many nodes have not replied.
    left: usize,
    /// How many nodes answered with each code.
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
