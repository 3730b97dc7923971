//! What all parts of the engine share.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::engine::{Claim, Event};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Result};
use foldhash::fast::RandomState;
use futures_util::future::join_all;
use tokio::sync::{Notify, mpsc};
use zookeeper_client::Error as Refusal;

use crate::config::Config;
use crate::connection::{Connection, Session, patience};
use crate::entry::Entry;
use crate::error::{Failure, error};
use crate::lock_node::{LockNode, LockNodeUse};
use crate::names;
use crate::queue::Queue;
use crate::session::{ManagedSession, SessionEvents};

/// How many sessions one client opens with just the timeouts that its holds want. Each ttl and lock-delay may want one of
/// its own.
const SESSIONS: usize = 16;

/// How many requests to tidy up are on their way at once.
pub(crate) const MAX_IN_FLIGHT: usize = 256;

/// The state behind the engine.
pub(crate) struct State {
    pub(crate) config: Arc<Config>,
    /// The session of those who wait.
    pub(crate) waiting_session: Arc<ManagedSession>,
    /// The shortest and the longest session that the servers grant.
    pub(crate) limits: (Duration, Duration),
    /// Those of holds, by what was asked for.
    sessions: tokio::sync::Mutex<HashMap<Duration, Arc<ManagedSession>>>,
    listeners: SessionEvents,
    pub(crate) events: mpsc::UnboundedSender<Event>,
    pub(crate) watch_requests: mpsc::UnboundedSender<(Arc<Entry>, Arc<Connection>)>,
    pub(crate) registry: Mutex<Registry>,
    /// There is more to tidy up.
    pub(crate) reap_due: Notify,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) closed: bool,
    pub(crate) entries: HashMap<ClaimId, Arc<Entry>, RandomState>,
    /// When holds end unless they were prolonged meanwhile.
    pub(crate) deadlines: BinaryHeap<Reverse<(BootInstant, ClaimId)>>,
    /// The nodes of names that this client used.
    pub(crate) lock_nodes: HashMap<LockName, LockNodeUse, RandomState>,
    /// Whether it will be tidied up before long, without a word.
    pub(crate) reap_scheduled: bool,
}

impl State {
    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn new(
        config: Arc<Config>,
        waiting_session: Arc<ManagedSession>,
        limits: (Duration, Duration),
        listeners: SessionEvents,
        events: mpsc::UnboundedSender<Event>,
        watch_requests: mpsc::UnboundedSender<(Arc<Entry>, Arc<Connection>)>,
    ) -> Self {
        Self {
            config,
            waiting_session,
            limits,
            sessions: tokio::sync::Mutex::default(),
            listeners,
            events,
            watch_requests,
            registry: Mutex::default(),
            reap_due: Notify::new(),
        }
    }

    /// The node of a name.
    pub(crate) fn lock_node_path(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.root, names::encode(name))
    }

    /// A claim's node.
    pub(crate) fn claim_node_path(&self, name: &LockName, node: &str) -> String {
        format!("{}/{node}", self.lock_node_path(name))
    }

    /// The session that a hold of this claim wants: two thirds of it are the ttl, after which the client gives up.
    pub(crate) fn session_timeout(&self, claim: &Claim) -> Duration {
        let wanted = claim.ttl.saturating_mul(3) / 2;
        let wanted = wanted.saturating_add(claim.lock_delay);
        wanted.clamp(self.limits.0, self.limits.1)
    }

    /// For how long a hold can be believed in this session.
    pub(crate) fn lease(&self, claim: &Claim, session: &Session) -> Duration {
        let sure = session.timeout.saturating_sub(claim.lock_delay) * 2 / 3;
        sure.min(claim.ttl)
    }

    /// The session that a claim is to stand in line with.
    pub(crate) async fn session_for_waiting(
        &self,
        claim: &Claim,
    ) -> Result<Arc<ManagedSession>, Failure> {
        let wanted = self.session_timeout(claim);
        if wanted >= self.waiting_session.timeout {
            return Ok(Arc::clone(&self.waiting_session));
        }
        self.session_for(wanted).await
    }

    /// A session with this timeout; with one up to twice as long if there are many already, so that holds share them.
    pub(crate) async fn session_for(
        &self,
        wanted: Duration,
    ) -> Result<Arc<ManagedSession>, Failure> {
        let open = async {
            let mut sessions = self.sessions.lock().await;
            if let Some(managed) = sessions.get(&wanted) {
                return Ok(Arc::clone(managed));
            }
            let mut timeout = wanted;
            if sessions.len() >= SESSIONS {
                // There are few such lengths, and one of them is long enough for any hold.
                timeout = self.rounded(wanted);
                let all = sessions.values().chain([&self.waiting_session]);
                let fit = all.filter(|managed| (wanted..=timeout).contains(&managed.timeout));
                if let Some(fit) = fit.min_by_key(|managed| managed.timeout) {
                    return Ok(Arc::clone(fit));
                }
                // Whoever has a node, or may have one, has its session, too; and others come by it only here.
                let unused = sessions.extract_if(|_, managed| Arc::strong_count(managed) == 1);
                let unused: Vec<_> = unused.map(|(_, managed)| managed).collect();
                join_all(unused.iter().map(|managed| managed.close(true))).await;
            }
            let opened = ManagedSession::open(&self.config, timeout, self.listeners.clone()).await;
            let opened = opened.map_err(|error| Failure::Unanswered(error.to_string()))?;
            sessions.insert(timeout, Arc::clone(&opened));
            Ok(opened)
        };
        // Time for one server that is silent, and an answer of another.
        let limit = patience(wanted) + self.config.response_timeout;
        match tokio::time::timeout(limit, open).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::Unanswered(format!("no session within {limit:?}"))),
        }
    }

    /// The next power of two, in nanoseconds.
    fn rounded(&self, timeout: Duration) -> Duration {
        let nanos = u64::try_from(timeout.as_nanos()).ok();
        let next = nanos.and_then(u64::checked_next_power_of_two);
        next.map_or(self.limits.1, Duration::from_nanos)
            .min(self.limits.1)
    }

    /// All sessions.
    pub(crate) async fn sessions(&self) -> Vec<Arc<ManagedSession>> {
        let sessions = self.sessions.lock().await;
        let all = sessions.values().chain([&self.waiting_session]);
        all.map(Arc::clone).collect()
    }

    pub(crate) fn entry(&self, id: ClaimId) -> Option<Arc<Entry>> {
        self.registry().entries.get(&id).map(Arc::clone)
    }

    /// Notes that a claim has a place, or may have one soon.
    pub(crate) fn add(
        &self,
        claim: &Claim,
        managed: Arc<ManagedSession>,
        session: Arc<Session>,
    ) -> Arc<Entry> {
        let mut registry = self.registry();
        let parent = registry.lock_nodes.entry(claim.name.clone());
        let parent = parent.or_insert_with(|| LockNodeUse {
            uses: 0,
            ours: false,
            idle_since: Clock::Boot.now(),
            lock_node: Arc::new(LockNode::new(self.lock_node_path(&claim.name))),
        });
        parent.uses += 1;
        let entry = Arc::new(Entry::new(
            claim,
            Arc::clone(&parent.lock_node),
            managed,
            session,
        ));
        registry.entries.insert(entry.id, Arc::clone(&entry));
        entry
    }

    /// Notes that a claim has no place any more.
    pub(crate) fn remove(&self, entry: &Entry) {
        let mut registry = self.registry();
        if registry.entries.remove(&entry.id).is_none() {
            return;
        }
        let idle = match registry.lock_nodes.get_mut(&entry.name) {
            Some(parent) => {
                parent.uses -= 1;
                parent.idle_since = Clock::Boot.now();
                parent.uses == 0 && !registry.reap_scheduled
            }
            None => false,
        };
        drop(registry);
        if idle {
            self.reap_due.notify_one();
        }
    }

    /// Notes that the node of a name is there; whether this client made it.
    pub(crate) fn note_lock_node(&self, entry: &Entry, ours: bool) {
        entry.lock_node.set_exists(true);
        if let Some(parent) = self.registry().lock_nodes.get_mut(&entry.name) {
            parent.ours = ours;
        }
    }

    /// Notes until when a hold is to stand.
    pub(crate) fn hold_until(&self, entry: &Entry, ends_at: BootInstant) {
        let first = {
            let mut known = entry.known();
            let first = !known.held;
            known.held = true;
            known.ends_at = ends_at;
            first
        };
        // A prolonged hold is found in its old place in the heap, and put back.
        if first {
            let mut registry = self.registry();
            let soonest = registry
                .deadlines
                .peek()
                .is_none_or(|Reverse((at, _))| ends_at < *at);
            registry.deadlines.push(Reverse((ends_at, entry.id)));
            drop(registry);
            if soonest {
                self.reap_due.notify_one();
            }
        }
    }

    /// The line at a name; none if there is no such node.
    pub(crate) fn sorted(&self, name: &LockName, children: Vec<String>) -> Result<Queue> {
        Queue::new(children).map_err(|word| Error::NotALock {
            store: self.config.store.clone(),
            name: name.clone(),
            why: format!("somebody stands in line in the mode {word:?}, which this version does not know; use the newer fencelock"),
        })
    }

    /// The children of a name's node; none if there is no such node.
    pub(crate) async fn children(
        &self,
        connection: &Connection,
        list: impl Future<Output = Result<Vec<String>, Refusal>>,
    ) -> Result<Vec<String>, Failure> {
        match connection.read(list).await {
            Err(Failure::Refused(Refusal::NoNode)) => Ok(Vec::new()),
            children => children,
        }
    }

    /// The children of a name's node as they are after all that the servers have taken so far.
    pub(crate) async fn fresh_children(
        &self,
        connection: &Connection,
        name: &LockName,
    ) -> Result<Vec<String>, Failure> {
        let parent = self.lock_node_path(name);
        let sync = connection.client().sync(self.config.root_path());
        let list = connection.client().list_children(&parent);
        // Both are on their way before the first answer is awaited.
        let (synced, children) =
            tokio::join!(connection.read(sync), self.children(connection, list));
        match synced {
            Ok(()) | Err(Failure::Refused(_)) => children,
            Err(failure) => Err(failure),
        }
    }

    /// An error that says what was asked.
    pub(crate) fn error(&self, action: impl Into<String>, failure: Failure) -> Error {
        error(&self.config, action, failure)
    }
}
