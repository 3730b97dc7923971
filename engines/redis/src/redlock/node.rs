//! What is known about one node: its current connection, whether it may vote, and the withdrawals that it has not answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock, Error};
use redis::{Cmd, RedisError};
use tokio::sync::Notify;

use super::clock::NodeClock;
use super::config::Config;
use super::connection::Connection;
use crate::error::explain;

/// The hash that a node keeps besides the locks.
pub(crate) const MEMORY: &str = "fencelock:redlock";
/// How many counters all names share. With more counters fewer names share one. This only affects speed.
pub(crate) const BUCKETS: usize = 4096;
/// How many withdrawals are kept for a node that does not reply.
const PENDING: usize = 10_000;

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) index: usize,
    pub(crate) name: String,
    status: Mutex<Status>,
    /// Whether the first attempt to connect has ended.
    tried: AtomicBool,
    pub(crate) clock: NodeClock,
    /// Until this instant, in ns, it does not vote, because its clock was set.
    suspended_until: AtomicU64,
    /// Notified when the connection breaks.
    pub(crate) wake_up: Arc<Notify>,
    absence: Mutex<Option<Absence>>,
    /// When it may vote, if it does not vote now, and the absence that ends then.
    due: Mutex<Option<(BootInstant, i64)>>,
    /// Withdrawals without a reply, and until when they are needed.
    pending: Mutex<VecDeque<(BootInstant, Cmd)>>,
}

/// A time without a vote.
#[derive(Debug)]
struct Absence {
    run_id: String,
    /// When it began, by the server's clock. This identifies the absence.
    since: i64,
    /// When this client saw it first.
    seen: BootInstant,
}

#[derive(Debug)]
pub(crate) enum Status {
    Up(Arc<Connection>),
    Down { why: String, fault: Fault },
}

/// Why a node is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Unreachable,
    Refused,
    /// It can never be a node of this store.
    Unfit,
}

/// Why a node does not vote.
#[derive(Clone, Debug)]
pub(crate) struct NotVoting {
    pub(crate) why: String,
    pub(crate) refused: bool,
}

/// Nodes, with the connections for requests to them.
pub(crate) type Voters = Vec<(Arc<Node>, Arc<Connection>)>;

impl Node {
    pub(crate) fn new(index: usize, name: String) -> Self {
        Self {
            index,
            name,
            status: Mutex::new(Status::Down {
                why: "not connected yet".to_owned(),
                fault: Fault::Unreachable,
            }),
            tried: AtomicBool::new(false),
            clock: NodeClock::default(),
            suspended_until: AtomicU64::new(0),
            wake_up: Arc::default(),
            absence: Mutex::default(),
            due: Mutex::default(),
            pending: Mutex::default(),
        }
    }

    /// Sets the status after connecting has succeeded or failed, or the connection was lost.
    pub(crate) fn set(&self, status: Status) {
        *self.status.lock() = status;
        self.tried.store(true, Ordering::SeqCst);
    }

    pub(crate) fn was_tried(&self) -> bool {
        self.tried.load(Ordering::SeqCst)
    }

    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        match &*self.status.lock() {
            Status::Up(connection) if !connection.is_broken() => Some(Arc::clone(connection)),
            _ => None,
        }
    }

    /// The connection, if the node has the scripts.
    pub(crate) fn member(&self) -> Option<Arc<Connection>> {
        self.connection()
            .filter(|connection| connection.is_member())
    }

    /// The connection, if the node may vote for claims.
    pub(crate) fn voter(&self, now: BootInstant) -> Option<Arc<Connection>> {
        let suspended = self.suspended_until.load(Ordering::SeqCst) > now.as_nanos();
        self.member().filter(|_| !suspended)
    }

    /// Why it can never be a node of this store.
    pub(crate) fn unfit(&self) -> Option<String> {
        match &*self.status.lock() {
            Status::Down { why, fault } if *fault == Fault::Unfit => {
                Some(format!("the node {}: {why}", self.name))
            }
            _ => None,
        }
    }

    /// Why it does not vote, in words.
    pub(crate) fn not_voting(&self, config: &Config, now: BootInstant) -> NotVoting {
        let (why, refused) = match &*self.status.lock() {
            Status::Down { why, fault } => (why.clone(), *fault != Fault::Unreachable),
            Status::Up(connection) if connection.is_broken() => {
                ("the connection was lost".to_owned(), false)
            }
            Status::Up(connection) if connection.is_member() => {
                let until = self.suspended_until.load(Ordering::SeqCst);
                let left = BootInstant::from_nanos(until).since(now);
                let why = if left.is_zero() {
                    format!("no answer within {:?}", config.node_timeout)
                } else {
                    format!("its clock was set; it votes again in {}", seconds(left))
                };
                (why, false)
            }
            Status::Up(_) => (self.not_admitted(config, now), false),
        };
        NotVoting { why, refused }
    }

    fn not_admitted(&self, config: &Config, now: BootInstant) -> String {
        match self.due() {
            Some((due, _)) if due > now => format!(
                "it was started a short time ago, or is new or emptied, and may have forgotten who holds; it votes in {}",
                seconds(due.since(now))
            ),
            _ if config.inspect_only => {
                "no client that takes locks has found yet that it may vote".to_owned()
            }
            _ => "it has lost its memory, and too few other nodes answer to tell it how far tokens have come".to_owned(),
        }
    }

    /// When it may vote, if it does not vote now, and since when it has not voted, by its clock.
    pub(crate) fn due(&self) -> Option<(BootInstant, i64)> {
        *self.due.lock()
    }

    pub(crate) fn set_due(&self, due: BootInstant, since: i64) {
        *self.due.lock() = Some((due, since));
    }

    /// For how long clients of this machine have seen it in an absence, by this machine's boot clock. The time begins at `noted`
    /// ms, when the first of them saw it. If the server has no note, it begins when this client first saw it.
    pub(crate) fn seen_for(
        &self,
        run_id: &str,
        since: i64,
        noted: i64,
        asked: BootInstant,
    ) -> Duration {
        let mut absence = self.absence.lock();
        let seen = match &*absence {
            Some(known) if known.run_id == run_id && known.since == since => known.seen,
            _ => asked,
        };
        *absence = Some(Absence {
            run_id: run_id.to_owned(),
            since,
            seen,
        });
        let now = i64::try_from(asked.as_nanos() / 1_000_000).unwrap_or(i64::MAX);
        let noted = u64::try_from(now.saturating_sub(noted)).unwrap_or(0);
        Duration::from_millis(noted).max(asked.since(seen))
    }

    /// Notes the node's time. Returns `false` if its clock was set now or not long ago: it does not vote for `delay`, until every
    /// lease that it may have ended too early is over.
    pub(crate) fn check_clock(
        &self,
        delay: Duration,
        micros: i64,
        asked: BootInstant,
        heard: BootInstant,
    ) -> bool {
        let Some(by) = self.clock.see(micros, asked, heard) else {
            // A vote that was under way when another answer showed it.
            return heard.as_nanos() >= self.suspended_until.load(Ordering::SeqCst);
        };
        tracing::warn!(node = %self.name, by_ms = by / 1000, "the node's clock was set; it does not vote for a while");
        let until = heard + delay;
        self.suspended_until
            .fetch_max(until.as_nanos(), Ordering::SeqCst);
        delay.is_zero()
    }

    /// Keeps a withdrawal without a reply. It is sent again when the node is back before `until`.
    pub(crate) fn keep_withdrawal(&self, until: BootInstant, command: Cmd) {
        let mut pending = self.pending.lock();
        if pending.len() >= PENDING {
            pending.pop_front();
        }
        pending.push_back((until, command));
    }

    /// Sends the withdrawals that had no reply.
    pub(crate) async fn send_withdrawals(&self, connection: &Connection) {
        let pending = std::mem::take(&mut *self.pending.lock());
        if pending.is_empty() {
            return;
        }
        let now = Clock::Boot.now();
        let pending: Vec<_> = pending
            .into_iter()
            .filter(|(until, _)| *until > now)
            .collect();
        for part in pending.chunks(200) {
            let commands: Vec<_> = part.iter().map(|(_, command)| command.clone()).collect();
            if connection.ask_all(&commands).await.is_err() {
                // They may not have arrived: the next connection sends them again.
                for (until, command) in pending {
                    self.keep_withdrawal(until, command);
                }
                return;
            }
        }
    }

    pub(crate) fn failed(&self, action: &str, error: RedisError) -> Error {
        explain(&self.name, action, None, error)
    }
}

/// Whole seconds, rounded up.
fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_millis().div_ceil(1000))
}
