//! Raises all counters of tokens, at a quorum of nodes.

use fencelock_core::engine::check_floor;
use fencelock_core::support::inspect_only;
use fencelock_core::{Result, Token};
use futures_util::future::join_all;
use redis::RedisError;

use super::connection::Connection;
use super::node::{BUCKETS, MEMORY};
use super::state::State;
use crate::reply::{text, unexpected};

const RAISING: &str = "raising all tokens";

/// See [`Engine::raise_tokens`](fencelock_core::Engine::raise_tokens).
pub(crate) async fn raise_tokens(state: &State, floor: Token) -> Result<Token> {
    check_floor(floor)?;
    if state.config.inspect_only {
        return Err(inspect_only(&state.config.store, RAISING));
    }
    let highest = raise(state, floor.get()).await?;
    check_floor(Token(highest))?;
    // From now on the tokens of all counters are above the highest one.
    raise(state, highest).await?;
    Ok(Token(highest))
}

/// Raises each counter at a quorum to the floor, so that each later quorum has a node with it. Returns the highest counter of
/// these nodes. Each quorum that has voted for a token has one of them.
async fn raise(state: &State, floor: u64) -> Result<u64> {
    let asked = state
        .members()
        .into_iter()
        .map(|(node, connection)| async move {
            let answer = ask(state, &connection, floor).await;
            let failed = |error| (node.index, node.failed(RAISING, error));
            answer.map(|counter| (node.index, counter)).map_err(failed)
        });
    let (mut raised, mut failed) = (Vec::new(), Vec::new());
    let mut highest = floor;
    for answer in join_all(asked).await {
        match answer {
            Ok((node, Some(counter))) => {
                raised.push(node);
                highest = highest.max(counter);
            }
            Ok((_, None)) => {}
            Err(error) => failed.push(error),
        }
    }
    match raised.len() >= state.config.quorum {
        true => Ok(highest),
        false => Err(state.too_few_besides(RAISING, failed, &raised)),
    }
}

/// `None` if the node does not vote.
async fn ask(
    state: &State,
    connection: &Connection,
    floor: u64,
) -> Result<Option<u64>, RedisError> {
    let mut command = redis::cmd("EVAL");
    command.arg(&state.scripts.raise.text).arg(1).arg(MEMORY);
    command.arg(&connection.run_id).arg(BUCKETS).arg(floor);
    let answer = connection.ask(&command).await?;
    match text(&answer) {
        Some(none) if none.is_empty() => Ok(None),
        Some(counter) => counter.parse().map(Some).map_err(|_| unexpected(&answer)),
        None => Err(unexpected(&answer)),
    }
}
