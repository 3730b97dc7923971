//! How a node is connected, and when it may vote: at once if the server still has its memory. Otherwise it must wait long
//! enough, and learn from the other nodes the highest tokens.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::support::Backoff;
use fencelock_core::{Clock, ConfigPart, Error, Result};
use futures_util::future::join_all;
use redis::{FromRedisValue, Value};

use super::connection::{Connection, Setup};
use super::node::{BUCKETS, Fault, MEMORY, Node, Status};
use super::state::State;
use crate::machine::Machine;
use crate::reply::time_micros;
use crate::scripts::Script;

/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a node's clock is read when no other request is sent to it.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// How often to see whether another client has admitted a node.
const MEMBER_INTERVAL: Duration = Duration::from_millis(250);

/// The answer of `redlock_attach`.
struct Attached {
    /// 1 if the server process votes, 0 if it did before its last start, -1 if it has no memory.
    member: i64,
    /// Since when it does not vote, by its clock.
    since: i64,
    floor: u64,
    /// When a client on this machine saw it first, by the boot clock in ms.
    first: i64,
}

/// What the other nodes know, for a node that has lost its memory.
struct Known {
    floor: u64,
    counters: Vec<u64>,
    /// Whether the nodes' time replaces what they have lost.
    by_time: bool,
    /// Whether the nodes that vote are a quorum together with this one.
    complete: bool,
}

/// The answer of `redlock_survey`.
struct Survey {
    member: bool,
    micros: u64,
    floor: u64,
    longest: u64,
    counters: Vec<u64>,
    young: bool,
}

impl Survey {
    fn read(answer: &Value) -> Option<Self> {
        let Value::Array(parts) = answer else {
            return None;
        };
        let number = |at: usize| match parts.get(at)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let Value::Array(counters) = parts.get(4)? else {
            return None;
        };
        let counters = counters.iter().map(|counter| match counter {
            Value::BulkString(bytes) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse().ok()),
            _ => None,
        });
        Some(Self {
            member: number(0)? == 1,
            micros: number(1)?,
            floor: number(2)?,
            longest: number(3)?,
            counters: counters.map(|counter| counter.unwrap_or(0)).collect(),
            young: number(5)? == 1,
        })
    }
}

/// Keeps a node connected, watches its clock, and admits it when it is due, until the engine is closed or dropped.
pub(crate) async fn maintain(state: Weak<State>, index: usize) {
    let fresh = Backoff::new(Duration::from_millis(5), LONGEST_PAUSE);
    let mut pauses = fresh.clone();
    loop {
        let Some(strong) = open(&state) else {
            return;
        };
        let node = Arc::clone(&strong.nodes[index]);
        match connect(&strong, &node).await {
            Ok(connection) => {
                pauses = fresh.clone();
                node.set(Status::Up(Arc::clone(&connection)));
                strong.node_changed();
                drop(strong);
                watch(&state, &node, &connection).await;
                let Some(strong) = state.upgrade() else {
                    return;
                };
                node.set(Status::Down {
                    why: "the connection was lost".to_owned(),
                    fault: Fault::Unreachable,
                });
                strong.node_changed();
            }
            Err(error) => {
                tracing::debug!(node = %node.name, %error, "connecting to a node failed");
                node.set(down(&error));
                strong.node_changed();
                let closing = strong.closing();
                drop(strong);
                tokio::select! {
                    () = tokio::time::sleep(pauses.next_pause()) => {}
                    () = closing => {}
                }
            }
        }
    }
}

/// The state, unless the engine is closed or dropped.
fn open(state: &Weak<State>) -> Option<Arc<State>> {
    state.upgrade().filter(|state| !state.is_closed())
}

fn down(error: &Error) -> Status {
    let fault = match error {
        Error::Refused { .. } => Fault::Refused,
        Error::Config { .. } => Fault::Unfit,
        _ => Fault::Unreachable,
    };
    let why = match error {
        Error::Unavailable { action, cause, .. } | Error::Refused { action, cause, .. } => {
            format!("{action}: {cause}")
        }
        Error::Config { why, .. } => why.clone(),
        other => other.to_string(),
    };
    Status::Down { why, fault }
}

async fn connect(state: &Arc<State>, node: &Node) -> Result<Arc<Connection>> {
    let listener = Arc::downgrade(state);
    let hear = move |payload: &[u8]| {
        if let Some(state) = listener.upgrade() {
            state.receive(payload);
        }
    };
    let config = &state.config;
    let setup = Setup {
        client: &config.nodes[node.index].1,
        node: &node.name,
        channel: &state.channel,
        connect_timeout: config.connect_timeout,
        response_timeout: (config.node_timeout * 10).max(Duration::from_millis(500)),
        wake_up: Arc::clone(&node.wake_up),
    };
    let connection = Arc::new(setup.open(hear).await?);
    attach(state, node, &connection).await?;
    let same = |other: &&Arc<Node>| {
        other.index != node.index
            && other
                .connection()
                .is_some_and(|other| other.run_id == connection.run_id)
    };
    if let Some(other) = state.nodes.iter().find(same) {
        let why = format!(
            "it is the same server as {}; a server has one vote, so name each once",
            other.name
        );
        return Err(Error::config(&node.name, ConfigPart::Server, why));
    }
    Ok(connection)
}

/// Returns when the connection breaks, or the engine is closed or dropped.
async fn watch(state: &Weak<State>, node: &Arc<Node>, connection: &Arc<Connection>) {
    while !connection.is_broken() {
        let Some(strong) = open(state) else {
            return;
        };
        let member = connection.is_member();
        let pause = if member {
            CLOCK_INTERVAL
        } else {
            let now = Clock::Boot.now();
            let due = node.due().map_or(now, |(due, _)| due);
            due.since(now)
                .clamp(Duration::from_millis(10), MEMBER_INTERVAL)
        };
        let closing = strong.closing();
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = node.wake_up.notified() => continue,
            () = closing => return,
        }
        let Some(strong) = state.upgrade() else {
            return;
        };
        if member {
            read_clock(&strong, node, connection).await;
            continue;
        }
        if let Err(error) = attach_or_join(&strong, node, connection).await {
            tracing::debug!(node = %node.name, %error, "a node could not be admitted");
        }
        if connection.is_member() {
            strong.node_changed();
        }
    }
}

async fn attach_or_join(state: &State, node: &Node, connection: &Connection) -> Result<()> {
    attach(state, node, connection).await?;
    if connection.is_member() || state.config.inspect_only {
        return Ok(());
    }
    join(state, node, connection).await
}

async fn read_clock(state: &State, node: &Node, connection: &Connection) {
    let asked = Clock::Boot.now();
    let answer = connection.ask(&redis::cmd("TIME")).await;
    let heard = Clock::Boot.now();
    if let Ok(Some(micros)) = answer.map(|value| time_micros(&value)) {
        node.check_clock(state.delay(), micros, asked, heard);
        if connection.is_member() {
            // Some may have been kept after the connection was made.
            node.send_withdrawals(connection).await;
        }
    }
}

/// Finds out whether the server votes, and if not, when it may.
async fn attach(state: &State, node: &Node, connection: &Connection) -> Result<()> {
    if state.config.inspect_only {
        return read_membership(state, node, connection).await;
    }
    let asked = Clock::Boot.now();
    let attached = ask_membership(state, node, connection).await?;
    // The node's clock is not used here: if it was set right after the start, it can show any uptime.
    let run_id = &connection.run_id;
    let seen = node.seen_for(run_id, attached.since, attached.first, asked);
    let waited = match attached.member {
        // The server has its memory, so it has lost nothing since its start.
        0 => seen.max(connection.ran),
        // The server may have been emptied just before it was first seen.
        _ => seen,
    };
    let due = asked + state.delay().saturating_sub(waited);
    node.set_due(due, attached.since);
    if attached.member == 1 {
        load_scripts(state, node, connection).await?;
        connection.set_member(attached.floor);
        node.send_withdrawals(connection).await;
    }
    Ok(())
}

async fn ask_membership(state: &State, node: &Node, connection: &Connection) -> Result<Attached> {
    let mut command = redis::cmd("EVAL");
    command
        .arg(&state.scripts.attach.text)
        .arg(1)
        .arg(MEMORY)
        .arg(&connection.run_id)
        .arg(state.config.max_ttl.as_millis() as u64)
        .arg(state.machine.id())
        .arg(Machine::now());
    let asked = Clock::Boot.now();
    let answer = connection.ask(&command).await;
    let heard = Clock::Boot.now();
    let answer =
        answer.and_then(|value| Ok(<(i64, i64, i64, u64, u64, i64)>::from_redis_value(value)?));
    let failed = |error| node.failed("asking the node whether it votes", error);
    let (member, micros, since, longest, floor, first) = answer.map_err(failed)?;
    node.check_clock(state.delay(), micros, asked, heard);
    state.saw_longest(longest);
    Ok(Attached {
        member,
        since,
        floor,
        first,
    })
}

/// Like [`attach`], for a store that was opened only for inspection: reads whether the server votes, and writes nothing.
async fn read_membership(state: &State, node: &Node, connection: &Connection) -> Result<()> {
    let mut command = redis::cmd("HMGET");
    command.arg(MEMORY).arg("run").arg("floor");
    let answer = connection.ask(&command).await;
    let answer =
        answer.and_then(|value| Ok(<(Option<String>, Option<u64>)>::from_redis_value(value)?));
    let failed = |error| node.failed("asking the node whether it votes", error);
    let (run, floor) = answer.map_err(failed)?;
    if run.as_deref() == Some(connection.run_id.as_str()) {
        load_scripts(state, node, connection).await?;
        connection.set_member(floor.unwrap_or(0));
    }
    Ok(())
}

async fn load_scripts(state: &State, node: &Node, connection: &Connection) -> Result<()> {
    let load = |script: &Script| {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&script.text);
        command
    };
    let commands: Vec<_> = state.scripts.loaded().into_iter().map(load).collect();
    let failed = |error| node.failed("giving the node its scripts", error);
    let answers = connection.ask_all(&commands).await.map_err(failed)?;
    for answer in answers {
        if let Value::ServerError(error) = answer {
            return Err(failed(error.into()));
        }
    }
    Ok(())
}

/// Admits the server if it is due and enough other nodes report their counters. The counters are read after the wait, when no
/// client can use a reply from before the loss any more.
async fn join(state: &State, node: &Node, connection: &Connection) -> Result<()> {
    let Some((due, since)) = node.due() else {
        return Ok(());
    };
    if Clock::Boot.now() < due {
        return Ok(());
    }
    let longest = state.longest();
    let Some(known) = survey(state, node).await else {
        return Ok(());
    };
    if state.longest() > longest {
        // A client uses longer leases than this one knew: the server must wait longer.
        return Ok(());
    }
    let mut command = redis::cmd("EVAL");
    command
        .arg(&state.scripts.join.text)
        .arg(1)
        .arg(MEMORY)
        .arg(&connection.run_id)
        .arg(since)
        .arg(known.floor)
        .arg(u8::from(known.by_time));
    for counter in &known.counters {
        command.arg(*counter);
    }
    let failed = |error| node.failed("letting the node vote", error);
    connection.ask(&command).await.map_err(failed)?;
    if known.complete {
        let mut grown = redis::cmd("HDEL");
        grown.arg(MEMORY).arg("young");
        for node in &state.nodes {
            if let Some(connection) = node.connection() {
                // If it fails, a node without memory may be admitted by time again.
                drop(connection.ask(&grown).await);
            }
        }
    }
    // The same as for a member that another client has admitted.
    attach(state, node, connection).await
}

/// What the other nodes know of tokens, if enough of them answer: at least one of every quorum that included the joining node.
/// If a whole quorum has lost its memory, there is no such node, and the nodes' time replaces it. Until a quorum has been
/// admitted in that way, the nodes so admitted still count as without memory.
async fn survey(state: &State, joining: &Node) -> Option<Known> {
    let (count, quorum) = (state.nodes.len(), state.config.quorum);
    let others = state
        .nodes
        .iter()
        .filter(|node| node.index != joining.index);
    let asked = others
        .filter_map(|node| node.connection())
        .map(|connection| async move {
            let mut command = redis::cmd("EVAL");
            command.arg(&state.scripts.survey.text).arg(1).arg(MEMORY);
            command.arg(&connection.run_id).arg(BUCKETS);
            let answer = connection.ask(&command).await.ok()?;
            Survey::read(&answer)
        });
    let answers: Vec<Survey> = join_all(asked).await.into_iter().flatten().collect();
    let members = answers.iter().filter(|answer| answer.member).count();
    let young = answers
        .iter()
        .filter(|answer| answer.member && answer.young);
    let without_memory = answers.len() - members + 1 + young.count();
    let mut floor = answers.iter().map(|answer| answer.floor).max().unwrap_or(0);
    let by_time = members < count - quorum + 1;
    if by_time {
        if without_memory < quorum {
            return None;
        }
        floor = floor.max(median_time(&answers));
    }
    let mut counters = vec![floor; BUCKETS];
    for answer in answers {
        state.saw_longest(answer.longest);
        for (counter, told) in counters.iter_mut().zip(answer.counters) {
            *counter = told.max(*counter);
        }
    }
    Some(Known {
        floor,
        counters,
        by_time,
        complete: members + 1 >= quorum,
    })
}

/// The median of the nodes' times, rounded up, so that clients that admit nodes at the same time start with the same number.
fn median_time(answers: &[Survey]) -> u64 {
    let mut times: Vec<u64> = answers.iter().map(|answer| answer.micros).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2);
    median.map_or(0, |time| ((time >> 13) + 1) << 13)
}
