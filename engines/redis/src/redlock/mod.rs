//! The engine for N independent Redis servers, of which a majority decides (Redlock), with fencing tokens.
//!
//! `redlock://[user:pass@]h1:p1,[user:pass@]h2:p2,h3:p3[/db]`, over TLS `redlocks://`. Credentials that stand before the
//! first host alone are for all of them.
//!
//! | option | default | |
//! | --- | --- | --- |
//! | `quorum` | the majority | how many nodes must agree; more of them survive more that forget unnoticed |
//! | `node-timeout` | 50ms | for an answer of one node; every ttl must be five times as long at least |
//! | `max-ttl` | 30s | the longest ttl with its lock-delay; a node that was restarted does not vote for that and 2 s |
//! | `first-node-gate` | no | `yes`: after a split vote the first node is asked alone before the others |
//! | `connect-timeout` | 5s | for a connection to be made and prepared |
//! | `password-env`, `password-file` | | where the password of all nodes is, other than in the URL |
//! | `tls-ca`, `tls-cert`, `tls-key` | | files in PEM format: the authority to trust, and this client's certificate |
//!
//! The lock is a plain string at the key that is the lock's name, so that Redlock clients which do `SET NX PX` at each node
//! exclude this one and are excluded by it. Beside the locks each node keeps one hash, `fencelock:redlock`, of fixed size.
//!
//! # What keeps a node from voting
//! A server process votes once it was *let in*: after `max-ttl` and 2 s since it was first seen (or, if it still has its
//! memory, as soon as it has used so much processor time), with no counter below those of the other nodes. Both go by
//! clocks that nobody sets: the boot clock of each machine that has clients, and the processor's. So a store of new nodes grants nothing
//! for its first 32 s. A process is known by the run id that `INFO` tells at each connection; a node that does not know
//! the scripts any more, or whose counters have fallen, is looked at anew. A node whose clock was set, against this
//! machine's boot clock, does not vote for as long either.
//!
//! # What to know
//! * No order: who waits is told when the lock is released, and asks again now and then.
//! * The timing assumption that remains: each node's clock runs at about the right rate, and one that is set is noticed.
//!   A client notices it of nodes that it was connected to before.
//! * Tokens hold without clocks, but for one case: if a whole quorum loses its memory, they go on from the nodes' time.

mod batcher;
mod clock;
mod config;
mod connection;
mod diagnose;
mod held;
mod inspect;
mod node;
mod round;
mod scripts;
mod votes;

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{
    BootInstant, ClaimId, ClaimIds, Clock, Durability, Engine, Error, Finding, LeaseKind, Limit,
    LockName, Order, Promises, Purpose, Result, StoreUrl, Token, Wake,
};
use futures_util::future::join_all;
use redis::{Cmd, RedisError, Value};
use tokio::sync::{Mutex, mpsc, watch};

use self::batcher::Told;
use self::config::Settings;
use self::held::{Held, Lasting};
use self::node::{Abstains, BUCKETS, MEMORY, Node};
use self::round::{Round, Tally};
use self::scripts::Scripts;
use self::votes::{Asked, Manner, Outcome, whose};
use crate::contention::Contention;
use crate::entry::{Entries, Entry};
use crate::machine::Machine;
use crate::stored::{Message, millis, px};

/// How many holds one renewal script prolongs; it blocks a node for about a millisecond.
const RENEWED_AT_ONCE: usize = 500;
/// How often a claim that does not wait is tried while the vote is split.
const SPLITS: u32 = 6;
/// The other nodes hear of a release as soon as the first does, give or take this.
const OTHERS_HEAR: Duration = Duration::from_millis(1);
/// For how long at least a withdrawal waits for its quorum: unlike a grant, it gets no worse by being slow.
const WITHDRAWING: Duration = Duration::from_millis(500);
/// The longest pause of one who waits for a lock.
const LONGEST_PAUSE: u32 = 250;

/// Locks on N independent Redis servers.
pub struct Redlock {
    inner: Arc<Inner>,
    events: Mutex<mpsc::UnboundedReceiver<Event>>,
}

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Inner {
    settings: Settings,
    machine: Machine,
    scripts: Scripts,
    nodes: Vec<Arc<Node>>,
    /// What this process listens to is `fencelock:` and this.
    channel: String,
    entries: Entries,
    held: Held,
    contention: Contention,
    attempts: AtomicU64,
    events: mpsc::UnboundedSender<Event>,
    closed: watch::Sender<bool>,
    /// Counts what happened to the nodes.
    news: watch::Sender<u64>,
    /// By node: when it may vote if it does not, and since when it was seen.
    due: StdMutex<Vec<Option<(BootInstant, i64)>>>,
    /// The longest lease that anybody uses, in ms.
    longest: AtomicU64,
}

/// What the other nodes tell one that has lost its memory.
pub(crate) struct Known {
    pub(crate) floor: u64,
    pub(crate) counters: Vec<u64>,
    /// Whether the nodes' time took the place of what they knew.
    pub(crate) by_time: bool,
    /// Whether those that vote are a quorum with this one.
    pub(crate) complete: bool,
}

impl Redlock {
    /// Connects to the nodes that a URL names. Needs a tokio runtime, and keeps a task there for each node.
    ///
    /// # Errors
    /// [`Error::Config`] if the URL cannot be used or a node is not fit, [`Error::Unavailable`] if fewer nodes than the
    /// quorum answer within `connect-timeout`, [`Error::Refused`] if that is because they refuse this user.
    ///
    /// # Cancel safety
    /// May be dropped: nothing is held yet.
    pub async fn connect(url: StoreUrl) -> Result<Self> {
        Self::open(Settings::from_url(url, true)?).await
    }

    /// As [`Redlock::connect`], but nodes vote as soon as they are started, whatever they may have forgotten. There to show
    /// what that leads to: two holders.
    ///
    /// # Errors
    /// As [`Redlock::connect`].
    #[doc(hidden)]
    pub async fn connect_without_delayed_restart(url: StoreUrl) -> Result<Self> {
        Self::open(Settings::from_url(url, false)?).await
    }

    async fn open(settings: Settings) -> Result<Self> {
        let (events, heard) = mpsc::unbounded_channel();
        let names = settings.nodes.iter().map(|(name, _)| name.clone());
        let nodes: Vec<_> = names
            .enumerate()
            .map(|(index, name)| Arc::new(Node::new(index, name)))
            .collect();
        let count = nodes.len();
        let inner = Arc::new(Inner {
            settings,
            machine: Machine::this(),
            scripts: Scripts::new(),
            nodes,
            channel: ClaimIds::new()?.next().to_string(),
            entries: Entries::default(),
            held: Held::default(),
            contention: Contention::default(),
            attempts: AtomicU64::new(0),
            events,
            closed: watch::Sender::new(false),
            news: watch::Sender::new(0),
            due: StdMutex::new(vec![None; count]),
            longest: AtomicU64::new(0),
        });
        for index in 0..count {
            tokio::spawn(node::tend(Arc::downgrade(&inner), index));
        }
        let opened = inner.opened().await;
        if opened.is_err() {
            inner.close();
        }
        opened?;
        let events = Mutex::new(heard);
        Ok(Self { inner, events })
    }
}

impl Inner {
    /// Waits until enough nodes are connected, and those that may vote soon do; not long for the last ones.
    async fn opened(&self) -> Result<()> {
        let begun = Clock::Boot.now();
        let mut news = self.news.subscribe();
        loop {
            news.mark_unchanged();
            let now = Clock::Boot.now();
            let waited = now.since(begun);
            let up = self.nodes.iter().filter(|node| node.link().is_some());
            let up = up.count();
            let tried = self.nodes.iter().filter(|node| node.was_tried()).count();
            if let Some(why) = self.nodes.iter().find_map(|node| node.unfit()) {
                return Err(Error::config(&self.settings.store, why));
            }
            if let Some((one, other)) = self.twins() {
                let why = format!(
                    "{one} and {other} are the same server; a server has one vote, so name each once"
                );
                return Err(Error::config(&self.settings.store, why));
            }
            let soon = now + Duration::from_secs(1);
            let coming = self.nodes.iter().any(|node| {
                node.link().is_some_and(|link| !link.is_member())
                    && self.due(node.index).is_some_and(|due| due < soon)
            });
            let enough = up >= self.settings.quorum;
            let all = tried == self.nodes.len();
            let patient = waited < self.settings.node_timeout * 2 + Duration::from_millis(100);
            if enough && (all || !patient) && (!coming || waited > Duration::from_secs(2)) {
                return Ok(());
            }
            if !enough && (all || waited >= self.settings.connect_timeout) {
                return Err(self.too_few("connecting", Vec::new()));
            }
            let pause = Duration::from_millis(20);
            let _ = tokio::time::timeout(pause, news.changed()).await;
        }
    }

    /// Two nodes that are one server.
    fn twins(&self) -> Option<(&str, &str)> {
        let links = self.nodes.iter().map(|node| (node, node.link()));
        let links: Vec<_> = links
            .filter_map(|(node, link)| Some((node, link?)))
            .collect();
        links.iter().enumerate().find_map(|(at, (node, link))| {
            let mut later = links[at + 1..].iter();
            let twin = later.find(|(_, other)| other.run_id == link.run_id)?;
            Some((node.name.as_str(), twin.0.name.as_str()))
        })
    }

    fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Something happened to a node.
    fn changed(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Returns when the engine is closed or gone.
    fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.subscribe();
        async move {
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    fn close(&self) {
        self.closed.send_replace(true);
        self.entries.wake_all();
    }

    fn all_due(&self) -> MutexGuard<'_, Vec<Option<(BootInstant, i64)>>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_due(&self, node: usize, due: BootInstant, since: i64) {
        self.all_due()[node] = Some((due, since));
    }

    fn due_and_since(&self, node: usize) -> Option<(BootInstant, i64)> {
        self.all_due()[node]
    }

    fn due(&self, node: usize) -> Option<BootInstant> {
        self.due_and_since(node).map(|(due, _)| due)
    }

    /// The longest lease that anybody uses, as far as this process knows.
    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::SeqCst))
    }

    fn saw_longest(&self, longest: Duration) {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.longest.fetch_max(millis, Ordering::SeqCst);
    }

    fn hear(&self, payload: &[u8]) {
        if let Some((b'w', id)) = payload.split_first()
            && let Some(id) = std::str::from_utf8(id)
                .ok()
                .and_then(|id| ClaimId::from_str(id).ok())
            && let Some(waiter) = self.entries.find(&id)
        {
            waiter.wake();
            return;
        }
        let event = match Message::parse(payload) {
            Some(Message::Lost(claim)) => Event::Lost(claim),
            Some(Message::Asked(claim)) => Event::Asked(claim),
            _ => return,
        };
        // Nobody listens any more when the engine is being dropped.
        let _ = self.events.send(event);
    }

    /// What the other nodes know of tokens, if they are enough to tell: of every quorum that the joining node was in, one
    /// at least. If a whole quorum has lost its memory that cannot be had, and the nodes' time takes its place;
    /// until a quorum has come in that way, those that have are counted as still without.
    async fn survey(&self, joining: usize) -> Option<Known> {
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        let others = self.nodes.iter().filter(|node| node.index != joining);
        let asked = others
            .filter_map(|node| node.link())
            .map(|link| async move {
                let mut command = redis::cmd("EVAL");
                command.arg(&self.scripts.survey.text).arg(1).arg(MEMORY);
                command.arg(&link.run_id).arg(BUCKETS);
                let answer = link.ask(&command).await.ok()?;
                read_survey(&answer)
            });
        let answers: Vec<Survey> = join_all(asked).await.into_iter().flatten().collect();
        let members = answers.iter().filter(|answer| answer.member).count();
        let young = answers
            .iter()
            .filter(|answer| answer.member && answer.young);
        let blank = answers.len() - members + 1 + young.count();
        let mut floor = answers.iter().map(|answer| answer.floor).max().unwrap_or(0);
        let by_time = members < count - quorum + 1;
        if by_time {
            if blank < quorum {
                return None;
            }
            let mut times: Vec<u64> = answers.iter().map(|answer| answer.micros).collect();
            times.sort_unstable();
            // Rounded, so that clients that let nodes in at the same time begin with the same number.
            let time = times
                .get(times.len() / 2)
                .map_or(0, |time| ((time >> 13) + 1) << 13);
            floor = floor.max(time);
        }
        let mut counters = vec![floor; BUCKETS];
        for answer in answers {
            self.saw_longest(Duration::from_millis(answer.longest));
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

    /// Fewer nodes than the quorum: which, and why.
    fn too_few(&self, action: &str, failed: Vec<(usize, Error)>) -> Error {
        self.too_few_but(action, failed, &[])
    }

    /// The same where these have answered.
    fn too_few_but(&self, action: &str, failed: Vec<(usize, Error)>, answered: &[usize]) -> Error {
        let now = Clock::Boot.now();
        let mut texts = Vec::new();
        let mut refusing = 0;
        let mut failed = failed;
        if let Some(at) = failed
            .iter()
            .position(|(_, error)| matches!(error, Error::NotALock { .. }))
        {
            return failed.swap_remove(at).1;
        }
        for node in &self.nodes {
            let said = failed.iter().find(|(index, _)| *index == node.index);
            let why = match said {
                Some((_, error)) => {
                    let text = match error {
                        Error::Unavailable { cause, .. } => cause.to_string(),
                        other => other.to_string(),
                    };
                    refusing += usize::from(matches!(error, Error::Refused { .. }));
                    text
                }
                None if node.voter(now).is_some() && action == "placing a claim" => continue,
                None if node.link().is_some() && action == "connecting" => continue,
                None if answered.contains(&node.index) => continue,
                None => {
                    let Abstains { why, refused } = node.abstains(self, now);
                    refusing += usize::from(refused);
                    why
                }
            };
            texts.push(format!("{}: {why}", node.name));
        }
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        let cause = format!(
            "{quorum} of {count} nodes are needed, and {} cannot be counted: {}",
            texts.len(),
            texts.join("; ")
        );
        // Final only if those that refuse are in the way by themselves: that others are away or slow passes.
        if refusing > count - quorum {
            return Error::refused(&self.settings.store, action, cause);
        }
        Error::unavailable(&self.settings.store, action, cause)
    }

    /// Who does not vote at the moment.
    fn abstainers(&self) -> Vec<Finding> {
        let now = Clock::Boot.now();
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        let silent = self.nodes.iter().filter(|node| node.voter(now).is_none());
        let findings = silent.map(|node| Finding {
            purpose: Purpose::Efficiency,
            what: format!(
                "{} does not vote, and {quorum} of {count} nodes must: {}",
                node.name,
                node.abstains(self, now).why
            ),
            change: "bring it back, or wait until it votes".into(),
        });
        findings.collect()
    }

    /// When to ask again for a lock that is taken.
    fn recheck(&self, waiter: Option<&Entry>, left: Option<Duration>) -> Duration {
        let last = waiter.map_or(10, |waiter| waiter.pause.load(Ordering::Relaxed).max(10));
        let next = fastrand::u32(10..=last * 3).min(LONGEST_PAUSE);
        if let Some(waiter) = waiter {
            waiter.pause.store(next, Ordering::Relaxed);
        }
        let pause = Duration::from_millis(next.into());
        match left {
            Some(left) => pause.min(left + Duration::from_millis(fastrand::u64(1..=10))),
            None => pause,
        }
    }

    fn members(&self) -> Asked {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((Arc::clone(node), node.member()?)))
            .collect()
    }

    /// Renews some holds at all nodes.
    async fn renew_some(self: &Arc<Self>, held: &[HeldClaim], lasting: Lasting) -> Vec<Renewal> {
        let (count, quorum) = (self.nodes.len(), self.settings.quorum);
        let mut command = Cmd::with_capacity(3 + 4 * held.len(), 160 * held.len());
        command
            .arg("EVALSHA")
            .arg(&self.scripts.renew.sha)
            .arg(held.len());
        for held in held {
            command.arg(held.claim.name.as_str());
        }
        for HeldClaim { claim, token } in held {
            command.arg(&whose(claim, None)[..]).arg(token.get());
            match lasting {
                Lasting::AsAsked => command.arg(px(claim)),
                Lasting::NoShorter => command.arg(format!(">{}", px(claim))),
            };
        }
        let members = self.members();
        let counted_from = Clock::Boot.now();
        let round = Round::new(Renewed {
            tallies: vec![(0, 0, false); held.len()],
            count,
            quorum,
            left: members.len(),
        });
        for (_, link) in members {
            let round = Arc::clone(&round);
            let reply = move |told: Result<Told<'_>, RedisError>| {
                let codes = match told.as_ref().map(|told| &*told.values) {
                    Ok([Value::Array(codes)]) => &codes[..],
                    _ => &[],
                };
                round.count(|renewed| renewed.count(codes));
            };
            link.send(std::slice::from_ref(&command), false, Box::new(reply));
        }
        round.enough(self.settings.node_timeout).await;
        let renewed = round.tally();
        let tallies = &renewed.tallies;
        let renewals = tallies.iter().map(|tally @ (kept, _, asked)| {
            if !renewed.is_decided(tally) {
                return Renewal::Unknown(self.too_few("renewing", Vec::new()));
            }
            if *kept < quorum {
                return Renewal::Lost;
            }
            Renewal::Kept {
                counted_from,
                lease: Duration::ZERO,
                asked: *asked,
            }
        });
        let renewals = renewals.zip(held).map(|(renewal, held)| match renewal {
            Renewal::Kept {
                counted_from,
                asked,
                ..
            } => Renewal::Kept {
                counted_from,
                lease: held.claim.ttl,
                asked,
            },
            other => other,
        });
        renewals.collect()
    }

    /// Withdraws everywhere; says what a quorum says, or all that answer in time.
    async fn withdraw(self: &Arc<Self>, claim: &Claim, how: &[u8]) -> Result<Withdrawn> {
        let quorum = self.settings.quorum;
        let command = self.withdrawal(claim, None, how);
        let members = self.members();
        let lease = claim.ttl.saturating_add(claim.lock_delay);
        for node in &self.nodes {
            if !members.iter().any(|(member, _)| member.index == node.index) {
                node.owe(Clock::Boot.now() + lease, command.clone());
            }
        }
        let round = Round::new(Withdrawals {
            quorum,
            left: members.len(),
            codes: [0; 5],
            failed: Vec::new(),
        });
        let told = Arc::clone(&round);
        self.withdraw_at(members, command, claim, move |node, answer| {
            told.count(|withdrawals| withdrawals.count(node, answer));
        });
        let patience = self.settings.node_timeout.max(WITHDRAWING);
        round.enough(patience).await;
        let (codes, failed) = {
            let mut withdrawals = round.tally();
            (withdrawals.codes, std::mem::take(&mut withdrawals.failed))
        };
        let answered: usize = codes.iter().sum();
        if answered < quorum {
            let failed = failed.into_iter().map(|(node, error)| {
                let error = self.nodes[node].failed("withdrawing a claim", error);
                (node, error)
            });
            return Err(self.too_few("withdrawing a claim", failed.collect()));
        }
        Ok(if codes[1] >= quorum {
            Withdrawn::Released
        } else if codes[2] > 0 {
            Withdrawn::LeftLine
        } else if codes[4] > self.nodes.len() - quorum {
            Withdrawn::NotOwner
        } else {
            Withdrawn::Expired
        })
    }

    fn promises(&self) -> Promises {
        let mut limits = Vec::new();
        let evicts = |node: &Arc<Node>| node.link().is_some_and(|link| link.evicts);
        let evicting: Vec<&str> = self
            .nodes
            .iter()
            .filter(|node| evicts(node))
            .map(|node| node.name.as_str())
            .collect();
        if !evicting.is_empty() {
            limits.push(Limit {
                what: format!(
                    "when memory is short these nodes evict keys, and locks with them: {}",
                    evicting.join(", ")
                ),
                change:
                    "maxmemory-policy noeviction in redis.conf, and CONFIG SET maxmemory-policy noeviction until its next \
                     start; or keep locks on servers of their own"
                        .into(),
            });
        }
        Promises {
            engine: "redlock",
            order: Order::Unordered,
            shared: false,
            permits: false,
            lock_delay: true,
            ranges: false,
            portable: false,
            lease: LeaseKind::Lease,
            wake: Wake::Push,
            durability: Durability::Volatile,
            clock: "the clocks of a quorum of nodes run at about the right rate; a node whose clock is set forward is noticed \
                    by clients that were connected to it before",
            min_ttl: self.settings.min_ttl(),
            max_ttl: self.settings.max_ttl,
            limits,
        }
    }
}

/// What `redlock_survey` answers.
struct Survey {
    member: bool,
    micros: u64,
    floor: u64,
    longest: u64,
    counters: Vec<u64>,
    young: bool,
}

fn read_survey(answer: &Value) -> Option<Survey> {
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
    Some(Survey {
        member: number(0)? == 1,
        micros: number(1)?,
        floor: number(2)?,
        longest: number(3)?,
        counters: counters.map(|counter| counter.unwrap_or(0)).collect(),
        young: number(5)? == 1,
    })
}

/// What the nodes say of some renewals.
#[derive(Debug)]
struct Renewed {
    /// Of each: how many kept it, and lost it; whether somebody asked for it.
    tallies: Vec<(usize, usize, bool)>,
    count: usize,
    quorum: usize,
    /// How many nodes have not answered.
    left: usize,
}

impl Renewed {
    /// One node has answered: a code for each, or nothing.
    fn count(&mut self, codes: &[Value]) {
        self.left -= 1;
        for (tally, code) in self.tallies.iter_mut().zip(codes) {
            match code {
                Value::Int(0) => tally.1 += 1,
                Value::Int(code @ (1 | 2)) => {
                    tally.0 += 1;
                    tally.2 |= *code == 2;
                }
                _ => {}
            }
        }
    }

    fn is_decided(&self, &(kept, lost, _): &(usize, usize, bool)) -> bool {
        kept >= self.quorum || lost > self.count - self.quorum
    }
}

impl Tally for Renewed {
    fn is_enough(&self) -> bool {
        self.left == 0 || self.tallies.iter().all(|tally| self.is_decided(tally))
    }
}

/// What the nodes say of a withdrawal.
#[derive(Debug)]
struct Withdrawals {
    quorum: usize,
    /// How many nodes have not answered.
    left: usize,
    /// How many said which code.
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

#[async_trait]
impl Engine for Redlock {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    fn clock(&self) -> Clock {
        Clock::Boot
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let inner = &self.inner;
        if inner.is_closed() {
            return Err(Error::Closed);
        }
        if let Some(grant) = inner.again(claim).await? {
            return Ok(Standing::Held(grant));
        }
        let mut waiter = inner.entries.find(&claim.id);
        let contention = inner.contention.of(&claim.name);
        let mut plain = waiter.is_none() && !claim.record && !contention.is_contended();
        let (mut hint, mut gate) = match &waiter {
            Some(waiter) => waiter_hint(waiter),
            None => (0, false),
        };
        let mut splits = 0;
        loop {
            if claim.wait && !plain && waiter.is_none() {
                waiter = Some(inner.entries.register(claim.id));
            }
            let manner = Manner {
                plain,
                hint,
                waits: claim.wait && !plain,
                gate: gate && inner.settings.gate,
            };
            let waiting = |pause: Duration| {
                let now = Clock::Boot.now();
                Ok(Standing::Waiting(Place {
                    ahead: None,
                    recheck: now + pause,
                    asked_at: now,
                    mark: 0,
                }))
            };
            match inner.attempt(claim, manner).await {
                Outcome::Granted(grant) => {
                    inner.held.note(claim.id, &grant);
                    inner.entries.remove(&claim.id);
                    if !plain && waiter.is_none() {
                        contention.lower();
                    }
                    return Ok(Standing::Held(grant));
                }
                Outcome::Taken(_) if plain && claim.wait => contention.raise(),
                Outcome::Taken(left) => {
                    contention.raise();
                    if !claim.wait {
                        return Ok(Standing::Busy);
                    }
                    return waiting(inner.recheck(waiter.as_deref(), left));
                }
                Outcome::Split(highest) => {
                    contention.raise();
                    (hint, gate) = (highest, true);
                    splits += 1;
                    let most = 1000 << splits.min(5);
                    let pause = Duration::from_micros(fastrand::u64(500..=most));
                    if let Some(waiter) = &waiter {
                        waiter.ticket.store(hint, Ordering::Relaxed);
                        return waiting(pause);
                    }
                    if splits >= SPLITS {
                        return Ok(Standing::Busy);
                    }
                    tokio::time::sleep(pause).await;
                }
                Outcome::Failed(error) => {
                    if !error.is_transient() {
                        inner.entries.remove(&claim.id);
                    }
                    return Err(error);
                }
            }
            plain = false;
        }
    }

    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        match self.inner.entries.find(&claim.id) {
            Some(waiter) => {
                // Nobody is pushed a grant here; it is worth asking again.
                let _ = waiter.next(u64::MAX).await;
                tokio::time::sleep(OTHERS_HEAR).await;
            }
            None => Clock::Boot.sleep_until(place.recheck).await,
        }
        Ok(None)
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.inner.renew_all(held, Lasting::AsAsked).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        if self.inner.is_closed() {
            self.inner.entries.remove(&claim.id);
            return Err(Error::Closed);
        }
        self.inner.held.forget(claim.id);
        let withdrawn = match how {
            Leave::Release => self.inner.withdraw(claim, b"release").await,
            Leave::Abandon => {
                let delay = millis(claim.lock_delay).to_string();
                self.inner.withdraw(claim, delay.as_bytes()).await
            }
        };
        self.inner.entries.remove(&claim.id);
        withdrawn
    }

    async fn events(&self) -> Result<Event> {
        let event = self.events.lock().await.recv().await;
        event.ok_or(Error::Closed)
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.inner.look_until(name, unlike).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.inner.list_part(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.inner.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(self.inner.findings().await)
    }

    async fn close(&self) -> Result<()> {
        self.inner.close();
        Ok(())
    }
}

/// What an earlier attempt of a claim that waits has learned.
fn waiter_hint(waiter: &Entry) -> (u64, bool) {
    let hint = waiter.ticket.swap(0, Ordering::Relaxed);
    (hint, hint > 0)
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.inner.close();
    }
}

impl fmt::Display for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.settings.store)
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({})", self.inner.settings.store)
    }
}
