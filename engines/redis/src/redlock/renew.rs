//! Renewals: many holds in one request to each node.

use crate::error::about;
use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant, HeldClaim, Renewal};
use fencelock_core::{Clock, Result, Tokens};
use redis::{Cmd, RedisError, Value};

use super::batcher::Replies;
use super::round::{Round, Tally};
use super::state::State;
use super::withdrawal::prefix;
use crate::stored::push_lease;

/// How many holds one script call renews. It blocks a node for about a millisecond.
const BATCH: usize = 500;

/// If a claim that is placed again already holds: prolongs its lease. `None` if it does not hold.
pub(crate) async fn renew_held(state: &State, claim: &Claim) -> Result<Option<Grant>> {
    let Some(token) = state.tokens.of(claim.id) else {
        return Ok(None);
    };
    let held = HeldClaim::new(claim.clone(), token);
    match renew(state, &[held]).await.pop() {
        Some(Renewal::Kept {
            counted_from,
            lease,
            ..
        }) => Ok(Some(Grant::new(Tokens::one(token), counted_from, lease))),
        Some(Renewal::Unknown(error)) => Err(error),
        _ => Ok(None),
    }
}

/// Renews holds, and forgets the tokens of those that are lost.
pub(crate) async fn renew(state: &State, held: &[HeldClaim]) -> Vec<Renewal> {
    let current = held.iter().filter(|held| !state.tokens.differs(held));
    let current: Vec<HeldClaim> = current.cloned().collect();
    let mut renewed = Vec::with_capacity(current.len());
    for some in current.chunks(BATCH) {
        renewed.extend(renew_batch(state, some).await);
    }
    for (held, renewal) in current.iter().zip(&renewed) {
        if matches!(renewal, Renewal::Lost) {
            state.tokens.forget(held.claim.id);
        }
    }
    if current.len() == held.len() {
        return renewed;
    }
    let mut renewed = current.iter().zip(renewed).peekable();
    let renewals = held.iter().map(|held| {
        let is_next = |(next, _): &(&HeldClaim, Renewal)| {
            (next.claim.id, next.token) == (held.claim.id, held.token)
        };
        renewed
            .next_if(is_next)
            .map_or(Renewal::Lost, |(_, renewal)| renewal)
    });
    renewals.collect()
}

async fn renew_batch(state: &State, held: &[HeldClaim]) -> Vec<Renewal> {
    let command = command(state, held);
    let members = state.members();
    let counted_from = Clock::Boot.now();
    let round = Round::new(Renewals {
        tallies: vec![HoldTally::default(); held.len()],
        nodes: state.nodes.len(),
        quorum: state.config.quorum,
        left: members.len(),
    });
    for (_, connection) in members {
        let round = Arc::clone(&round);
        let count = move |replies: Result<Replies<'_>, RedisError>| {
            let codes = match replies.as_ref().map(|replies| &*replies.values) {
                Ok([Value::Array(codes)]) => &codes[..],
                _ => &[],
            };
            round.count(|renewals| renewals.count(codes));
        };
        connection.send(std::slice::from_ref(&command), false, Box::new(count));
    }
    round.enough(state.config.node_timeout).await;
    let renewals = round.tally.lock();
    let all = renewals.tallies.iter().zip(held);
    all.map(|(tally, held)| {
        if !renewals.is_decided(tally) {
            return Renewal::Unknown(
                state.too_few(&about("renewing lock", Some(&held.claim.name)), Vec::new()),
            );
        }
        if tally.kept < renewals.quorum {
            return Renewal::Lost;
        }
        Renewal::kept(counted_from, held.claim.ttl, tally.asked)
    })
    .collect()
}

fn command(state: &State, held: &[HeldClaim]) -> Cmd {
    let mut command = Cmd::with_capacity(3 + 4 * held.len(), 160 * held.len());
    command.arg("EVALSHA").arg(&state.scripts.renew.sha);
    command.arg(held.len());
    for held in held {
        command.arg(held.claim.name.as_str());
    }
    for held in held {
        command.arg(&prefix(&held.claim, None)[..]);
        command.arg(held.token.get());
        push_lease(&mut command, held);
    }
    command
}

/// The answers of the nodes about one hold.
#[derive(Clone, Debug, Default)]
struct HoldTally {
    kept: usize,
    lost: usize,
    /// Whether its holder is asked to release.
    asked: bool,
}

/// The answers of the nodes about several holds.
#[derive(Debug)]
struct Renewals {
    tallies: Vec<HoldTally>,
    nodes: usize,
    quorum: usize,
    /// How many nodes have not replied.
    left: usize,
}

impl Renewals {
    /// Counts the codes of one node; none if it failed.
    fn count(&mut self, codes: &[Value]) {
        self.left -= 1;
        for (tally, code) in self.tallies.iter_mut().zip(codes) {
            match code {
                Value::Int(0) => tally.lost += 1,
                Value::Int(code @ (1 | 2)) => {
                    tally.kept += 1;
                    tally.asked |= *code == 2;
                }
                _ => {}
            }
        }
    }

    fn is_decided(&self, tally: &HoldTally) -> bool {
        tally.kept >= self.quorum || tally.lost > self.nodes - self.quorum
    }
}

impl Tally for Renewals {
    fn is_enough(&self) -> bool {
        self.left == 0 || self.tallies.iter().all(|tally| self.is_decided(tally))
    }
}
