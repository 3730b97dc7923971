use std::collections::BTreeMap;
use std::sync::Arc;

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock, Error, LockName, Mode, Result};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::cluster::Retries;
use crate::error::{about, is_noscript};
use crate::keys;
use crate::release::serve_queues;
use crate::reply::unexpected;
use crate::route::Route;
use crate::servers::{GrantRules, Servers};
use crate::slot_map::{ask_at, is_redirection};
use crate::stored::{kind, mark, push_lease, push_rest};

const ACTION: &str = "renewing lock";

/// How many exclusive holds one request renews. It blocks the server for about a millisecond.
const BATCH: usize = 500;
/// How many such requests to one server may be under way at once.
const BATCHES: usize = 4;
/// How many shared holds may be under way at once.
const SHARED: usize = 64;

/// Holds of one slot, as indexes into the list of all holds. One script call renews them.
type Group = (u16, Vec<usize>);

#[derive(Debug, Default)]
struct Share {
    /// The exclusive holds, by request.
    requests: Vec<Vec<Group>>,
    shared: Vec<usize>,
}

fn is_exclusive(held: &HeldClaim) -> bool {
    held.claim.mode == Mode::Exclusive
}

fn unknown(store: &str, error: &Error) -> Renewal {
    match error {
        Error::Closed => Renewal::Unknown(Error::Closed),
        _ => Renewal::Unknown(Error::unavailable(
            store,
            about(ACTION, None),
            error.to_string(),
        )),
    }
}

pub(crate) async fn renew(servers: &Arc<Servers>, held: &[HeldClaim]) -> Vec<Renewal> {
    let state = &servers.state;
    if state.config.inspect_only {
        let refused = |_| state.check_not_inspect_only("renewing a lock").err();
        let refused = held.iter().filter_map(refused);
        return refused.map(Renewal::Unknown).collect();
    }
    let renewed = renew_everywhere(servers, held).await;
    let renewed = renewed.into_iter().map(|renewal| {
        let silent = || Error::unavailable(state.store(), about(ACTION, None), "no answer in time");
        renewal.unwrap_or_else(|| Renewal::Unknown(silent()))
    });
    let renewed: Vec<Renewal> = renewed.collect();
    let lost = held.iter().zip(&renewed);
    let lost =
        lost.filter(|(held, renewal)| is_exclusive(held) && matches!(renewal, Renewal::Lost));
    let lost: Vec<LockName> = lost.map(|(held, _)| held.claim.name.clone()).collect();
    if !lost.is_empty() {
        serve_queues(servers, lost);
    }
    renewed
}

/// Renews at all servers at once. `None` for a hold without a reply.
async fn renew_everywhere(servers: &Servers, held: &[HeldClaim]) -> Vec<Option<Renewal>> {
    let mut renewed: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
    let shares = shares(servers, held);
    // The futures are collected: a lazy iterator of them would not be `Send` for every lifetime.
    let shares: Vec<_> = shares
        .iter()
        .map(|share| {
            let exclusive = share.requests.iter();
            let exclusive: Vec<_> = exclusive
                .map(|groups| renew_groups(servers, held, groups))
                .collect();
            let shared: Vec<_> = share
                .shared
                .iter()
                .map(|at| async move { vec![(*at, renew_shared(servers, &held[*at]).await)] })
                .collect();
            Box::pin(stream::select(
                stream::iter(exclusive).buffer_unordered(BATCHES),
                stream::iter(shared).buffer_unordered(SHARED),
            ))
        })
        .collect();
    let mut shares = stream::select_all(shares);
    // Slightly longer than the response timeout, so that a request without a reply reports that itself.
    let timeout = servers.state.config.response_timeout.mul_f64(1.125);
    let mut heard = Clock::Boot.now();
    loop {
        let next = shares.next();
        let answers = if servers.cluster().is_some() {
            let left = timeout.saturating_sub(Clock::Boot.now().since(heard));
            // The remaining holds belong to a node that is down. The holds at other nodes cannot wait for it.
            let Ok(answers) = tokio::time::timeout(left, next).await else {
                break;
            };
            answers
        } else {
            next.await
        };
        let Some(answers) = answers else { break };
        for (at, renewal) in answers {
            if !matches!(renewal, Renewal::Unknown(_)) {
                heard = Clock::Boot.now();
            }
            renewed[at] = Some(renewal);
        }
    }
    drop(shares);
    renewed
}

/// The holds by server.
fn shares(servers: &Servers, held: &[HeldClaim]) -> Vec<Share> {
    let cluster = servers.cluster();
    let mut slots: BTreeMap<u16, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (at, held) in held.iter().enumerate() {
        let slot = cluster.map_or(0, |_| keys::slot(held.claim.name.as_str()));
        let (exclusive, shared) = slots.entry(slot).or_default();
        if is_exclusive(held) {
            exclusive.push(at);
        } else {
            shared.push(at);
        }
    }
    let mut nodes: BTreeMap<usize, Share> = BTreeMap::new();
    for (slot, (exclusive, shared)) in slots {
        // The node's address in memory only distinguishes nodes. All unknown nodes count as one.
        let owner = cluster.and_then(|cluster| cluster.owner(slot));
        let node = owner.map_or(0, |node| Arc::as_ptr(&node) as usize);
        let share = nodes.entry(node).or_default();
        share.shared.extend(shared);
        for chunk in exclusive.chunks(BATCH) {
            let count =
                |groups: &[Group]| -> usize { groups.iter().map(|(_, all)| all.len()).sum() };
            match share.requests.last_mut() {
                Some(last) if count(last) + chunk.len() <= BATCH => {
                    last.push((slot, chunk.to_vec()));
                }
                _ => share.requests.push(vec![(slot, chunk.to_vec())]),
            }
        }
    }
    nodes.into_values().collect()
}

async fn to(servers: &Servers, slot: u16) -> Result<Route> {
    Route::over(servers, servers.connection_to_renew(slot).await?).await
}

/// Appends the arguments of the script after its name.
fn fill<'a>(
    servers: &Servers,
    command: &mut Cmd,
    held: impl ExactSizeIterator<Item = &'a HeldClaim> + Clone,
) {
    command.arg(held.len());
    for held in held.clone() {
        command.arg(held.claim.name.as_str());
    }
    for held in held {
        let claim = &held.claim;
        command.arg(&mark(&claim.id)[..]).arg(held.token.get());
        push_lease(command, held);
        if claim.reserve > 1 {
            // The hold may have passed to another owner within this process.
            let mut rest = Vec::with_capacity(64 + claim.owner.len());
            push_rest(&mut rest, claim, &servers.state.channel);
            command.arg(&rest[..]);
        } else {
            command.arg("");
        }
    }
}

/// One request to one server.
async fn renew_groups(
    servers: &Servers,
    held: &[HeldClaim],
    groups: &[Group],
) -> Vec<(usize, Renewal)> {
    let store = servers.state.store();
    let all = || groups.iter().flat_map(|(_, all)| all.iter().copied());
    let fail = |error: Error| all().map(|at| (at, unknown(store, &error))).collect();
    let Some((slot, _)) = groups.first() else {
        return Vec::new();
    };
    let mut route = match to(servers, *slot).await {
        Ok(route) => route,
        Err(error) => return fail(error),
    };
    let asked_at = Clock::Boot.now();
    let (mut renewed, moved) = match send_groups(servers, held, groups, &route, asked_at).await {
        Ok(answers) => answers,
        Err(error) => return fail(servers.state.failed(ACTION, None, error)),
    };
    if let Err(error) = route.replicate(servers).await {
        // A lost hold stays lost.
        for (_, renewal) in &mut renewed {
            if !matches!(renewal, Renewal::Lost) {
                *renewal = unknown(store, &error);
            }
        }
    }
    drop(route);
    // A slot is being moved: the holds that have arrived are renewed at the new node.
    let moved: Vec<_> = moved
        .into_iter()
        .map(|at| async move { (at, renew_one(servers, &held[at]).await) })
        .collect();
    let moved = stream::iter(moved).buffer_unordered(16);
    renewed.extend(moved.collect::<Vec<_>>().await);
    renewed
}

/// Sends a script call for each group. Returns the renewals, and the holds whose slot is being moved.
async fn send_groups(
    servers: &Servers,
    held: &[HeldClaim],
    groups: &[Group],
    route: &Route,
    asked_at: BootInstant,
) -> Result<(Vec<(usize, Renewal)>, Vec<usize>), RedisError> {
    let (state, connection) = (&servers.state, route.connection());
    let script = &state.scripts.renew;
    let mut commands = Pipeline::with_capacity(groups.len());
    for (_, group) in groups {
        let mut command = Cmd::with_capacity(3 + 5 * group.len(), 160 * group.len());
        command.arg("EVALSHA").arg(&script.sha);
        fill(servers, &mut command, group.iter().map(|at| &held[*at]));
        commands.add_command(command);
    }
    let answers = connection.send_all(&commands).await?;
    if answers.len() != groups.len() {
        return Err(unexpected(&Value::Nil));
    }
    let (mut renewed, mut moved) = (Vec::new(), Vec::new());
    for ((_, group), answer) in groups.iter().zip(answers) {
        let members = || group.iter().map(|at| &held[*at]);
        let answer = match answer {
            Value::ServerError(error) => {
                let error = RedisError::from(error);
                connection.note(Some(&error));
                if is_noscript(&error) {
                    let args = |command: &mut Cmd| fill(servers, command, members());
                    connection.run(script, args).await
                } else {
                    Err(error)
                }
            }
            answer => Ok(answer),
        };
        let error = match answer {
            Ok(Value::Array(codes)) if codes.len() == group.len() => {
                let codes = codes.iter().zip(group);
                renewed.extend(
                    codes.map(|(code, at)| (*at, renewal(servers, code, asked_at, &held[*at]))),
                );
                continue;
            }
            Ok(other) => unexpected(&other),
            Err(error) if is_redirection(&error) => {
                moved.extend(group);
                continue;
            }
            Err(error) => error,
        };
        let error = state.failed(ACTION, None, error);
        let failed = group.iter().map(|at| (*at, unknown(state.store(), &error)));
        renewed.extend(failed);
    }
    Ok((renewed, moved))
}

/// Renews one hold, at any node that has its slot.
async fn renew_one(servers: &Servers, held: &HeldClaim) -> Renewal {
    let state = &servers.state;
    let name = &held.claim.name;
    let slot = state.keys(name).slot;
    let fail = |error: RedisError| Renewal::Unknown(state.failed(ACTION, Some(name), error));
    let mut retries = Retries::new(&state.config);
    loop {
        let (_, connection) = match servers.connection(slot).await {
            Ok(found) => found,
            Err(error) => return Renewal::Unknown(error),
        };
        let asked_at = Clock::Boot.now();
        let args = |command: &mut Cmd| fill(servers, command, std::iter::once(held));
        let mut answer = connection.run(&state.scripts.renew, args).await;
        if let Err(error) = &answer
            && let Some(asked) = ask_new_node(servers, error, args).await
        {
            answer = asked;
        }
        match answer {
            Ok(Value::Array(codes)) if codes.len() == 1 => {
                let renewal = renewal(servers, &codes[0], asked_at, held);
                if state.config.replicas > 0 && matches!(renewal, Renewal::Kept { .. }) {
                    // The next renewal waits for the replicas.
                    let cause = "its slot is being moved to another node";
                    let error = Error::unavailable(state.store(), about(ACTION, Some(name)), cause);
                    return Renewal::Unknown(error);
                }
                return renewal;
            }
            Ok(other) => return fail(unexpected(&other)),
            Err(error) => {
                if !servers.should_retry(&mut retries, slot, &error).await {
                    return fail(error);
                }
            }
        }
    }
}

/// If the error names the node to which the slot is being moved: renews there.
async fn ask_new_node(
    servers: &Servers,
    error: &RedisError,
    args: impl Fn(&mut Cmd),
) -> Option<Result<Value, RedisError>> {
    let address = ask_at(error)?;
    let node = servers.cluster()?.node_at(&servers.state, &address).ok()?;
    let connection = node.connection(&servers.state).await.ok()?;
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("ASKING");
    let mut eval = redis::cmd("EVAL");
    eval.arg(&servers.state.scripts.renew.text);
    args(&mut eval);
    commands.add_command(eval);
    let answers = connection.send_all(&commands).await;
    Some(answers.and_then(|mut answers| match answers.pop() {
        Some(Value::ServerError(error)) => Err(error.into()),
        Some(answer) => Ok(answer),
        None => Err(unexpected(&Value::Nil)),
    }))
}

async fn renew_shared(servers: &Servers, held: &HeldClaim) -> Renewal {
    let (state, claim) = (&servers.state, &held.claim);
    let keys = state.keys(&claim.name);
    let (id, kind) = (mark(&claim.id), kind(claim.mode));
    let args = |command: &mut Cmd, rules: &GrantRules| {
        keys.push_all(command);
        command.arg(&id[4..]).arg(&kind);
        push_lease(command, held);
        command.arg(held.token.get());
        rules.push(command);
    };
    let mut retries = Retries::new(&state.config);
    loop {
        let mut route = match to(servers, keys.slot).await {
            Ok(route) => route,
            Err(error) => return Renewal::Unknown(error),
        };
        let asked_at = Clock::Boot.now();
        let rules = servers.grant_rules(keys.slot, &route.node, &route.main);
        let script = &state.scripts.renew_shared;
        let answer = route
            .connection()
            .run(script, |command| args(command, &rules));
        let code = match answer.await {
            Ok(code) => code,
            Err(error) => {
                if servers.should_retry(&mut retries, keys.slot, &error).await {
                    route.answered();
                    continue;
                }
                return Renewal::Unknown(state.failed(ACTION, Some(&claim.name), error));
            }
        };
        let renewal = renewal(servers, &code, asked_at, held);
        if matches!(renewal, Renewal::Lost) {
            route.answered();
        } else if let Err(error) = route.replicate(servers).await {
            return Renewal::Unknown(error);
        }
        return renewal;
    }
}

fn renewal(
    servers: &Servers,
    code: &Value,
    counted_from: BootInstant,
    held: &HeldClaim,
) -> Renewal {
    match code {
        Value::Int(0) => Renewal::Lost,
        Value::Int(code @ (1 | 2)) => Renewal::kept(counted_from, held.claim.ttl, *code == 2),
        _ => {
            let action = format!("renewing lock {}", held.claim.name);
            let cause = "the server is out of memory (maxmemory); free some or allow more";
            Renewal::Unknown(Error::unavailable(servers.state.store(), action, cause))
        }
    }
}
