//! Withdrawing a claim, or one attempt of it, at some nodes.

use std::sync::Arc;

use fencelock_core::Clock;
use fencelock_core::engine::Claim;
use redis::{Cmd, RedisError, Value};

use super::batcher::Replies;
use super::node::Voters;
use super::round::{Round, Tally};
use super::state::State;
use crate::keys::queue_key;
use crate::reply::unexpected_all;
use crate::stored::{mark, push_number};

/// The beginning of the stored value of a claim, or of one attempt of it.
pub(crate) fn prefix(claim: &Claim, attempt: Option<u64>) -> Vec<u8> {
    let mut prefix = mark(&claim.id).to_vec();
    prefix.push(b':');
    if let Some(attempt) = attempt {
        push_number(&mut prefix, attempt);
        prefix.push(b':');
    }
    prefix
}

/// The script call that withdraws a claim, or one attempt of it.
pub(crate) fn withdrawal(state: &State, claim: &Claim, attempt: Option<u64>, how: &[u8]) -> Cmd {
    let name = claim.name.as_str();
    let mut command = Cmd::with_capacity(7, 2 * name.len() + 200);
    command
        .arg("EVALSHA")
        .arg(&state.scripts.withdraw.sha)
        .arg(2)
        .arg(name)
        .arg(queue_key(name))
        .arg(&prefix(claim, attempt)[..])
        .arg(how);
    command
}

/// Withdraws at these nodes. `count` gets the index of each node with its code or error. A withdrawal without a reply is sent
/// again when the node is back.
pub(crate) fn withdraw_at(
    nodes: Voters,
    command: Cmd,
    claim: &Claim,
    count: impl Fn(usize, Result<i64, RedisError>) + Send + Sync + 'static,
) {
    let shared = Arc::new((command, count));
    let lease = claim.ttl.saturating_add(claim.lock_delay);
    for (node, connection) in nodes {
        let asked = Arc::clone(&shared);
        let on_replies = move |replies: Result<Replies<'_>, RedisError>| {
            let (command, count) = &*asked;
            let code = replies.and_then(|replies| match replies.values {
                [Value::Int(code)] => Ok(*code),
                [Value::ServerError(error)] => Err(error.clone().into()),
                other => Err(unexpected_all(other)),
            });
            if code.is_err() {
                node.keep_withdrawal(Clock::Boot.now() + lease, command.clone());
            }
            count(node.index, code);
        };
        let command = std::slice::from_ref(&shared.0);
        connection.send(command, false, Box::new(on_replies));
    }
}

/// How many nodes have not undone an attempt yet.
#[derive(Debug)]
struct Left(usize);

impl Tally for Left {
    fn is_enough(&self) -> bool {
        self.0 == 0
    }
}

/// Undoes an attempt, and waits for that at most for the timeout of a node. Requests without a reply continue in the
/// background.
pub(crate) async fn undo(state: &State, nodes: Voters, claim: &Claim, attempt: u64) {
    let command = withdrawal(state, claim, Some(attempt), b"undo");
    let round = Round::new(Left(nodes.len()));
    let counted = Arc::clone(&round);
    withdraw_at(nodes, command, claim, move |_, _| {
        counted.count(|left| left.0 -= 1);
    });
    round.enough(state.config.node_timeout).await;
}
