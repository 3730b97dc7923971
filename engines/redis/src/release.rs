//! Withdrawing a claim, evicting a holder, and serving the queue of a lock that was lost.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Evict, Leave, Withdrawn};
use fencelock_core::{Error, LockName, Mode, Result, Token};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Value};

use crate::connection::Connection;
use crate::error::{about, unreadable};
use crate::keys::Keys;
use crate::node::Node;
use crate::reply::unexpected;
use crate::servers::{GrantRules, Servers};
use crate::stored::{MARK_LEN, mark, millis};

const ACTION: &str = "releasing lock";

pub(crate) async fn withdraw(servers: &Servers, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    let state = &servers.state;
    state.check_not_inspect_only("releasing a lock")?;
    let keys = state.keys(&claim.name);
    servers.end_unanswered(&claim.id, keys.slot).await;
    let mark = mark(&claim.id);
    let contention = state.contention.of(&claim.name);
    let fast = how == Leave::Release && claim.mode == Mode::Exclusive && !contention.is_contended();
    let mut answer = None;
    if fast {
        let released = uncontended(servers, &keys, &mark);
        answer = released
            .await
            .inspect_err(|_| state.entries.remove(&claim.id))?;
    }
    let fast_failed = matches!(answer, Some((Value::Int(0), ..)));
    let answer = answer.filter(|_| !fast_failed);
    let answer = match answer {
        Some(answer) => Ok(answer),
        // Boxed, so that the future of the common case stays small.
        None => Box::pin(by_script(servers, &keys, &mark, claim, how)).await,
    };
    if matches!(answer, Ok((Value::Int(1), ..))) {
        if fast_failed {
            // It held, so there is a queue.
            contention.raise();
        } else {
            contention.clear_last();
        }
    }
    // Only now, because the script undoes a grant that was pushed before, and a grant that is pushed later is released.
    state.entries.remove(&claim.id);
    let (answer, node, connection) = answer?;
    let withdrawn = match answer {
        Value::Int(1) => Withdrawn::Released,
        Value::Int(2) => Withdrawn::LeftQueue,
        Value::Int(3) => Withdrawn::Expired,
        Value::Int(4) => Withdrawn::NotOwner,
        other => return Err(state.failed(ACTION, Some(&claim.name), unexpected(&other))),
    };
    if !servers.is_final(&claim.id, &node, &connection) {
        let action = about(ACTION, Some(&claim.name));
        return Err(Error::unsettled(state.store(), action));
    }
    Ok(withdrawn)
}

/// Releases a lock without waiters. `Int(0)` if this is another case; `None` if the general script must decide. Releases that
/// come together are sent in batches.
async fn uncontended(
    servers: &Servers,
    keys: &Keys<'_>,
    mark: &[u8; MARK_LEN],
) -> Result<Option<(Value, Arc<Node>, Arc<Connection>)>> {
    let state = &servers.state;
    let script = &state.scripts.release;
    let (node, connection) = servers.connection(keys.slot).await?;
    let answer = match &connection.together {
        Some(together) => {
            let under_way = together.begin();
            let answer = match under_way.goes_alone {
                true => {
                    let args = |command: &mut Cmd| {
                        keys.push_lock_and_queue(command);
                        command.arg(&mark[..]);
                    };
                    connection.run(script, args).await.map(Some)
                }
                false => together.release(keys.name, keys.queue(), *mark).await,
            };
            answer.map_err(|error| state.failed(ACTION, Some(keys.name), error))?
        }
        None => {
            let args = |command: &mut Cmd, _: &GrantRules| {
                keys.push_lock_and_queue(command);
                command.arg(&mark[..]);
            };
            // Boxed, so that the future of batched releases stays small.
            return Box::pin(servers.run(ACTION, keys, script, args))
                .await
                .map(Some);
        }
    };
    Ok(answer.map(|answer| (answer, node, connection)))
}

/// The general script, which also hands the lock over.
async fn by_script(
    servers: &Servers,
    keys: &Keys<'_>,
    mark: &[u8; MARK_LEN],
    claim: &Claim,
    how: Leave,
) -> Result<(Value, Arc<Node>, Arc<Connection>)> {
    let args = |command: &mut Cmd, rules: &GrantRules| {
        keys.push_all(command);
        command.arg(&mark[..]);
        match how {
            Leave::Release => command.arg(""),
            Leave::Abandon => command.arg(millis(claim.lock_delay)),
        };
        rules.push(command);
    };
    let script = &servers.state.scripts.withdraw;
    servers.run(ACTION, keys, script, args).await
}

/// Takes the lock from the holder with this token, or asks it to release. Returns whether the token was that of a holder.
pub(crate) async fn evict(
    servers: &Servers,
    name: &LockName,
    token: Token,
    how: Evict,
) -> Result<bool> {
    let state = &servers.state;
    state.check_not_inspect_only("taking a lock from its holder")?;
    let keys = state.keys(name);
    let args = |command: &mut Cmd, rules: &GrantRules| {
        keys.push_all(command);
        command.arg(token.get());
        command.arg(match how {
            Evict::Release => "release",
            Evict::Ask => "ask",
        });
        rules.push(command);
    };
    let script = &state.scripts.evict;
    let (answer, ..) = servers.run("evicting", &keys, script, args).await?;
    match answer {
        Value::Int(1) => Ok(true),
        Value::Int(0) => Ok(false),
        Value::Int(-1) => Err(unreadable(state.store(), name)),
        other => Err(state.failed("evicting", Some(name), unexpected(&other))),
    }
}

/// Serves the queues of locks that were found lost, in the background.
pub(crate) fn serve_queues(servers: &Arc<Servers>, names: Vec<LockName>) {
    let servers = Arc::clone(servers);
    tokio::spawn(async move {
        let servers = &servers;
        let served = names.into_iter().map(|name| async move {
            let keys = servers.state.keys(&name);
            let args = |command: &mut Cmd, rules: &GrantRules| {
                keys.push_all(command);
                rules.push(command);
            };
            let script = &servers.state.scripts.serve;
            if let Err(error) = servers.run("serving a queue", &keys, script, args).await {
                tracing::debug!(%name, %error, "a queue could not be served; its waiters will ask");
            }
        });
        let served = stream::iter(served).buffer_unordered(16);
        served.collect::<()>().await;
    });
}
