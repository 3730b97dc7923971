//! Raises all counters of tokens. In a cluster each slot has one.

use std::sync::Arc;

use fencelock_core::engine::check_floor;
use fencelock_core::{Result, Token};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::cluster::Retries;
use crate::error::is_noscript;
use crate::keys::{SLOTS, counter};
use crate::node::Node;
use crate::reply::{text, unexpected};
use crate::route::Route;
use crate::servers::Servers;

const RAISING: &str = "raising all tokens";

/// How many counters one request raises.
const AT_ONCE: usize = 512;

/// The slot of a counter; `None` for the only one of a store that is no cluster.
type Slot = Option<u16>;

/// See [`Engine::raise_tokens`](fencelock_core::Engine::raise_tokens).
pub(crate) async fn raise_tokens(servers: &Servers, floor: Token) -> Result<Token> {
    check_floor(floor)?;
    servers.state.check_not_inspect_only(RAISING)?;
    let highest = raise(servers, floor.get()).await?;
    check_floor(Token(highest))?;
    // From now on the tokens of all counters are above the highest one.
    raise(servers, highest).await?;
    Ok(Token(highest))
}

/// Raises each counter to the floor. Returns the highest token that can have been granted.
async fn raise(servers: &Servers, floor: u64) -> Result<u64> {
    let mut left: Vec<Slot> = match servers.cluster() {
        Some(_) => (0..SLOTS).map(Some).collect(),
        None => vec![None],
    };
    let mut highest = floor;
    let mut retries = Retries::new(&servers.state.config);
    while let Some(last) = left.last() {
        let (node, main) = servers.connection(last.unwrap_or(0)).await?;
        let some = take_some(servers, &mut left, &node);
        let mut route = Route::over(servers, (node, main)).await?;
        let answers = ask(servers, &route, &some, floor).await;
        let answers = answers.map_err(|error| servers.state.failed(RAISING, None, error))?;
        route.answered();
        route.replicate(servers).await?;
        for (slot, answer) in some.into_iter().zip(answers) {
            match answer {
                Ok(counter) => {
                    highest = highest.max(counter);
                    retries = Retries::new(&servers.state.config);
                }
                Err(error) if should_retry(servers, &mut retries, slot, &error).await => {
                    left.push(slot);
                }
                Err(error) => return Err(servers.state.failed(RAISING, None, error)),
            }
        }
    }
    Ok(highest)
}

/// Takes some slots of this node out of the list: the last one, and others.
fn take_some(servers: &Servers, left: &mut Vec<Slot>, node: &Arc<Node>) -> Vec<Slot> {
    let mut some: Vec<Slot> = left.pop().into_iter().collect();
    let Some(cluster) = servers.cluster() else {
        return some;
    };
    left.retain(|slot| {
        let owner = slot.and_then(|slot| cluster.owner(slot));
        let takes = some.len() < AT_ONCE && owner.is_some_and(|owner| Arc::ptr_eq(&owner, node));
        if takes {
            some.push(*slot);
        }
        !takes
    });
    some
}

/// Raises the counters of these slots. Each has an answer of its own, since a slot may have moved to another node.
async fn ask(
    servers: &Servers,
    route: &Route,
    slots: &[Slot],
    floor: u64,
) -> Result<Vec<Result<u64, RedisError>>, RedisError> {
    let Some((first, others)) = slots.split_first() else {
        return Ok(Vec::new());
    };
    let (script, connection) = (&servers.state.scripts.raise, route.connection());
    let args = |command: &mut Cmd, slot: &Slot| {
        command.arg(1).arg(&*counter(*slot)).arg(floor);
        command.arg(u8::from(servers.state.config.timed()));
    };
    // After the first one the server has the script.
    let first = connection.run(script, |command| args(command, first)).await;
    let mut answers = vec![first.and_then(|answer| read(&answer))];
    if others.is_empty() {
        return Ok(answers);
    }
    let mut commands = Pipeline::with_capacity(others.len());
    for slot in others {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.sha);
        args(&mut command, slot);
        commands.add_command(command);
    }
    let more = connection.send_all(&commands).await?;
    answers.extend(more.into_iter().map(|answer| match answer {
        Value::ServerError(error) => Err(error.into()),
        answer => read(&answer),
    }));
    Ok(answers)
}

fn read(answer: &Value) -> Result<u64, RedisError> {
    let number = text(answer).and_then(|text| text.parse().ok());
    number.ok_or_else(|| unexpected(answer))
}

/// If so, it returns when it is time to ask again.
async fn should_retry(
    servers: &Servers,
    retries: &mut Retries,
    slot: Slot,
    error: &RedisError,
) -> bool {
    is_noscript(error)
        || servers
            .should_retry(retries, slot.unwrap_or(0), error)
            .await
}
