//! One node: its connection of the moment and whoever restores it; whether it may vote, and how it comes to vote again
//! after it has lost its memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use redis::{Cmd, FromRedisValue, RedisError, Value};
use tokio::sync::Notify;

use super::Inner;
use super::clock::NodeClock;
use super::connection::Connection;
use crate::error::explain;
use crate::machine::Machine;
use crate::scripts::Script;

/// What a node remembers beside the locks, a hash.
pub(crate) const MEMORY: &str = "fencelock:redlock";
/// Names share so many counters. More of them make fewer names share one; nothing but speed hangs on it.
pub(crate) const BUCKETS: usize = 4096;
/// The longest pause between attempts to reconnect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a node's clock is looked at when nothing else is asked of it.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(1);
/// How often to see whether a node has been let in by somebody.
const LOOK_AT_MEMBER: Duration = Duration::from_millis(250);
/// How many withdrawals are kept for a node that does not answer.
const OWED: usize = 10_000;

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) name: String,
    state: Mutex<State>,
    /// Whether the first attempt to connect is over.
    tried: AtomicBool,
    pub(crate) clock: NodeClock,
    /// Before this instant, in ns, it does not vote, since its clock was set.
    suspended_until: AtomicU64,
    bell: Arc<Notify>,
    /// The spell without a vote (the run id, and since when as the server says) that is being watched, and since when.
    watched: Mutex<Option<((String, i64), BootInstant)>>,
    /// Withdrawals that had no answer.
    owed: Mutex<VecDeque<(BootInstant, Cmd)>>,
}

#[derive(Debug)]
enum State {
    Up(Arc<Connection>),
    Down { why: String, fault: Fault },
}

/// What keeps a node from being connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Away,
    Refused,
    Unfit,
}

/// Why a node does not vote.
#[derive(Clone, Debug)]
pub(crate) struct Abstains {
    pub(crate) why: String,
    pub(crate) refused: bool,
}

impl Node {
    pub(crate) fn new(index: usize, name: String) -> Self {
        let why = "not connected yet".to_owned();
        Self {
            index,
            name,
            state: Mutex::new(State::Down {
                why,
                fault: Fault::Away,
            }),
            tried: AtomicBool::new(false),
            clock: NodeClock::default(),
            suspended_until: AtomicU64::new(0),
            bell: Arc::default(),
            watched: Mutex::default(),
            owed: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one.
    pub(crate) fn link(&self) -> Option<Arc<Connection>> {
        match &*self.state() {
            State::Up(link) if !link.is_broken() => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Whether it was reached, or could not be.
    pub(crate) fn was_tried(&self) -> bool {
        self.tried.load(Ordering::SeqCst)
    }

    /// Why it can never be a node of this store.
    pub(crate) fn unfit(&self) -> Option<String> {
        match &*self.state() {
            State::Down { why, fault } if *fault == Fault::Unfit => {
                Some(format!("the node {}: {why}", self.name))
            }
            _ => None,
        }
    }

    /// The connection to a node that knows the scripts.
    pub(crate) fn member(&self) -> Option<Arc<Connection>> {
        self.link().filter(|link| link.is_member())
    }

    /// The connection to a node that may vote for claims.
    pub(crate) fn voter(&self, now: BootInstant) -> Option<Arc<Connection>> {
        let suspended = self.suspended_until.load(Ordering::SeqCst) > now.as_nanos();
        self.member().filter(|_| !suspended)
    }

    /// Why it does not vote, for people.
    pub(crate) fn abstains(&self, inner: &Inner, now: BootInstant) -> Abstains {
        let (why, refused) = match &*self.state() {
            State::Down { why, fault } => (why.clone(), *fault != Fault::Away),
            State::Up(link) if link.is_broken() => ("the connection was lost".to_owned(), false),
            State::Up(link) if link.is_member() => {
                let until = self.suspended_until.load(Ordering::SeqCst);
                let until = BootInstant::from_nanos(until).since(now);
                let why = if until.is_zero() {
                    format!("no answer within {:?}", inner.settings.node_timeout)
                } else {
                    format!("its clock was set; it votes again in {}", seconds(until))
                };
                (why, false)
            }
            State::Up(_) => (self.waits(inner, now), false),
        };
        Abstains { why, refused }
    }

    fn waits(&self, inner: &Inner, now: BootInstant) -> String {
        match inner.due(self.index) {
            Some(due) if due > now => format!(
                "it was started a short time ago, or is new or emptied, and may have forgotten who holds; it votes in {}",
                seconds(due.since(now))
            ),
            _ if inner.settings.inspect_only => "no client that takes locks has found yet that it may vote".to_owned(),
            _ => "it has lost its memory, and too few other nodes answer to tell it how far tokens have come".to_owned(),
        }
    }

    /// It told its time. `false` if its clock was set: it does not vote then until what it may have forgotten too early
    /// is over.
    pub(crate) fn told_time(
        &self,
        inner: &Inner,
        micros: i64,
        asked: BootInstant,
        heard: BootInstant,
    ) -> bool {
        let Some(by) = self.clock.see(micros, asked, heard) else {
            return true;
        };
        let delay = inner.settings.delay(inner.longest());
        tracing::warn!(node = %self.name, by_ms = by / 1000, "the node's clock was set; it does not vote for a while");
        let until = heard + delay;
        self.suspended_until
            .fetch_max(until.as_nanos(), Ordering::SeqCst);
        delay.is_zero()
    }

    /// A withdrawal that had no answer is sent again when the node is back, if that is before `until`.
    pub(crate) fn owe(&self, until: BootInstant, command: Cmd) {
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        if owed.len() >= OWED {
            owed.pop_front();
        }
        owed.push_back((until, command));
    }

    /// Sends what was owed to a node that did not answer.
    async fn settle(&self, link: &Connection) {
        let owed = {
            let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *owed)
        };
        let now = Clock::Boot.now();
        let owed: Vec<_> = owed.into_iter().filter(|(until, _)| *until > now).collect();
        for part in owed.chunks(200) {
            let commands: Vec<_> = part.iter().map(|(_, command)| command.clone()).collect();
            if link.ask_all(&commands).await.is_err() {
                // They may not have arrived; the next connection tries again.
                for (until, command) in owed {
                    self.owe(until, command);
                }
                return;
            }
        }
    }

    /// An error of this node.
    pub(crate) fn failed(&self, action: &str, error: RedisError) -> Error {
        explain(&self.name, action, None, error)
    }

    async fn connect(&self, inner: &Arc<Inner>) -> Result<Arc<Connection>> {
        let hub = Arc::downgrade(inner);
        let hear = move |payload: &[u8]| {
            if let Some(inner) = hub.upgrade() {
                inner.hear(payload);
            }
        };
        let settings = &inner.settings;
        let answer_timeout = (settings.node_timeout * 10).max(Duration::from_millis(500));
        let link = Connection::open(
            &settings.nodes[self.index].1,
            &self.name,
            &inner.channel,
            (settings.connect_timeout, answer_timeout),
            Arc::clone(&self.bell),
            hear,
        );
        let link = Arc::new(link.await?);
        self.attach(inner, &link).await?;
        let mut others = inner.nodes.iter().filter(|node| node.index != self.index);
        if let Some(other) =
            others.find(|node| node.link().is_some_and(|other| other.run_id == link.run_id))
        {
            let other = &other.name;
            let why = format!(
                "it is the same server as {other}; a server has one vote, so name each once"
            );
            return Err(Error::config(&self.name, why));
        }
        Ok(link)
    }

    /// As [`Node::attach`] for whoever only looks: reads whether the server votes, and writes nothing.
    async fn read_membership(&self, inner: &Arc<Inner>, link: &Arc<Connection>) -> Result<()> {
        let mut command = redis::cmd("HMGET");
        command.arg(MEMORY).arg("run").arg("floor");
        let answer = link.ask(&command).await;
        let answer =
            answer.and_then(|value| Ok(<(Option<String>, Option<u64>)>::from_redis_value(value)?));
        let (run, floor) =
            answer.map_err(|error| self.failed("asking the node whether it votes", error))?;
        if run.as_deref() == Some(link.run_id.as_str()) {
            self.give_scripts(inner, link).await?;
            link.let_in(floor.unwrap_or(0));
        }
        Ok(())
    }

    /// Finds out whether the server votes, and notes when it will.
    async fn attach(&self, inner: &Arc<Inner>, link: &Arc<Connection>) -> Result<()> {
        if inner.settings.inspect_only {
            return self.read_membership(inner, link).await;
        }
        let scripts = &inner.scripts;
        let mut command = redis::cmd("EVAL");
        let longest = inner.settings.max_ttl.as_millis() as u64;
        command.arg(&scripts.attach.text).arg(1).arg(MEMORY);
        command.arg(&link.run_id).arg(longest);
        command.arg(inner.machine.id()).arg(Machine::now());
        let asked = Clock::Boot.now();
        let answer = link.ask(&command).await;
        let heard = Clock::Boot.now();
        let answer =
            answer.and_then(|value| Ok(<(i64, i64, i64, u64, u64, i64)>::from_redis_value(value)?));
        let (member, micros, since, longest, floor, first) =
            answer.map_err(|error| self.failed("asking the node whether it votes", error))?;
        self.told_time(inner, micros, asked, heard);
        inner.saw_longest(Duration::from_millis(longest));
        let delay = inner.settings.delay(inner.longest());
        // No clock of the node counts here: a clock that is set right after the start makes any uptime.
        let seen = self.seen_for(link, (since, first), asked);
        // With its memory, it can have forgotten nothing since it was started; without, it may have been emptied just
        // before it was seen first.
        let waited = match member {
            0 => seen.max(link.ran),
            _ => seen,
        };
        let due = asked + delay.saturating_sub(waited);
        inner.note_due(self.index, due, since);
        if member == 1 {
            self.give_scripts(inner, link).await?;
            link.let_in(floor);
            self.settle(link).await;
        }
        Ok(())
    }

    /// For how long a server that does not vote has been seen in this spell, by this machine's boot clock: since `first`, when
    /// a client on this machine saw it, or since this client did, where the server takes no more notes.
    fn seen_for(
        &self,
        link: &Connection,
        (since, first): (i64, i64),
        asked: BootInstant,
    ) -> Duration {
        let spell = (link.run_id.clone(), since);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let own = match &*watched {
            Some((known, own)) if *known == spell => *own,
            _ => watched.insert((spell, asked)).1,
        };
        let now = i64::try_from(asked.as_nanos() / 1_000_000).unwrap_or(i64::MAX);
        let noted = u64::try_from(now.saturating_sub(first)).unwrap_or(0);
        Duration::from_millis(noted).max(asked.since(own))
    }

    async fn give_scripts(&self, inner: &Inner, link: &Connection) -> Result<()> {
        let load = |script: &Script| {
            let mut command = redis::cmd("SCRIPT");
            command.arg("LOAD").arg(&script.text);
            command
        };
        let commands: Vec<_> = inner.scripts.kept().into_iter().map(load).collect();
        let answers = link.ask_all(&commands).await;
        let answers = answers.map_err(|error| self.failed("giving the node its scripts", error))?;
        for answer in answers {
            if let Value::ServerError(error) = answer {
                return Err(self.failed("giving the node its scripts", error.into()));
            }
        }
        Ok(())
    }

    /// Lets the server in, if it has waited long enough and enough others tell how far the tokens have come. Their
    /// counters are read after the wait: whoever held an answer from before the loss is done by then.
    async fn join(&self, inner: &Arc<Inner>, link: &Arc<Connection>) -> Result<()> {
        let Some((due, since)) = inner.due_and_since(self.index) else {
            return Ok(());
        };
        if Clock::Boot.now() < due {
            return Ok(());
        }
        let before = inner.longest();
        let Some(known) = inner.survey(self.index).await else {
            return Ok(());
        };
        if inner.longest() > before {
            // Somebody uses longer leases than was known: it has longer to wait.
            return Ok(());
        }
        let mut command = redis::cmd("EVAL");
        command.arg(&inner.scripts.join.text).arg(1).arg(MEMORY);
        command.arg(&link.run_id).arg(since).arg(known.floor);
        command.arg(u8::from(known.by_time));
        for counter in &known.counters {
            command.arg(*counter);
        }
        let joined = link.ask(&command).await;
        joined.map_err(|error| self.failed("letting the node vote", error))?;
        if known.complete {
            let mut grown = redis::cmd("HDEL");
            grown.arg(MEMORY).arg("young");
            for node in &inner.nodes {
                if let Some(link) = node.link() {
                    // Where it does not arrive, a node that forgot may come in by the time once more.
                    drop(link.ask(&grown).await);
                }
            }
        }
        // As for any other member, whoever let it in.
        self.attach(inner, link).await
    }

    /// Whether a node that has just connected, or may vote, changed something for those who wait.
    fn set(&self, inner: &Inner, state: State) {
        *self.state() = state;
        self.tried.store(true, Ordering::SeqCst);
        inner.changed();
    }
}

/// A duration for people, in whole seconds upwards.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_millis().div_ceil(1000))
}

/// Keeps a node connected, looks at its clock, and lets it in when its time has come; until the engine is gone or closed.
pub(crate) async fn tend(inner: Weak<Inner>, index: usize) {
    let mut pause = Duration::from_millis(5);
    loop {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        if strong.is_closed() {
            return;
        }
        let node = Arc::clone(&strong.nodes[index]);
        match node.connect(&strong).await {
            Ok(link) => {
                pause = Duration::from_millis(5);
                node.set(&strong, State::Up(Arc::clone(&link)));
                drop(strong);
                watch(&inner, &node, &link).await;
                let Some(strong) = inner.upgrade() else {
                    return;
                };
                let why = "the connection was lost".to_owned();
                node.set(
                    &strong,
                    State::Down {
                        why,
                        fault: Fault::Away,
                    },
                );
            }
            Err(error) => {
                let fault = match error {
                    Error::Refused { .. } => Fault::Refused,
                    Error::Config { .. } => Fault::Unfit,
                    _ => Fault::Away,
                };
                let why = match &error {
                    Error::Unavailable { action, cause, .. }
                    | Error::Refused { action, cause, .. } => {
                        format!("{action}: {cause}")
                    }
                    Error::Config { why, .. } => why.clone(),
                    other => other.to_string(),
                };
                tracing::debug!(node = %node.name, %error, "connecting to a node failed");
                node.set(&strong, State::Down { why, fault });
                let closing = strong.closing();
                drop(strong);
                tokio::select! {
                    () = tokio::time::sleep(pause.mul_f64(0.75 + fastrand::f64() / 2.0)) => {}
                    () = closing => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// As long as the connection lives.
async fn watch(inner: &Weak<Inner>, node: &Arc<Node>, link: &Arc<Connection>) {
    while !link.is_broken() {
        let Some(strong) = inner.upgrade() else {
            return;
        };
        if strong.is_closed() {
            return;
        }
        let member = link.is_member();
        let pause = if member {
            LOOK_AT_CLOCK
        } else {
            let due = strong.due(node.index).unwrap_or_else(|| Clock::Boot.now());
            let left = due.since(Clock::Boot.now());
            left.clamp(Duration::from_millis(10), LOOK_AT_MEMBER)
        };
        let closing = strong.closing();
        drop(strong);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = node.bell.notified() => continue,
            () = closing => return,
        }
        let Some(strong) = inner.upgrade() else {
            return;
        };
        if member {
            look_at_clock(&strong, node, link).await;
            continue;
        }
        let looked = async {
            node.attach(&strong, link).await?;
            if !link.is_member() && !strong.settings.inspect_only {
                node.join(&strong, link).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = looked.await {
            tracing::debug!(node = %node.name, %error, "a node could not be let in");
        }
        if link.is_member() {
            strong.changed();
        }
    }
}

async fn look_at_clock(inner: &Arc<Inner>, node: &Node, link: &Connection) {
    let asked = Clock::Boot.now();
    let answer = link.ask(&redis::cmd("TIME")).await;
    let heard = Clock::Boot.now();
    if let Ok(Some(micros)) = answer.map(|value| micros(&value)) {
        node.told_time(inner, micros, asked, heard);
    }
}

/// What `TIME` answers, in microseconds.
pub(crate) fn micros(value: &Value) -> Option<i64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let number = |at: usize| match parts.get(at)? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<i64>().ok(),
        _ => None,
    };
    Some(number(0)? * 1_000_000 + number(1)?)
}
