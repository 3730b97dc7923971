//! The engine's state: its sessions, the entries of its claims, and the lock nodes that they use.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fencelock_core::engine::{Claim, EventSender};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, Error, LockName, Result};
use foldhash::fast::RandomState;
use tokio::sync::{Notify, mpsc};
use zookeeper_client::Error as Refusal;

use crate::config::Config;
use crate::connection::{Connection, Session};
use crate::entry::Entry;
use crate::error::{Failure, error};
use crate::lock_node::{LockNode, LockNodeUse};
use crate::names;
use crate::queue::Queue;
use crate::session::ManagedSession;
use crate::session_pool::SessionPool;

/// How many background requests are in flight at once.
pub(crate) const MAX_IN_FLIGHT: usize = 256;

pub(crate) struct State {
    pub(crate) config: Arc<Config>,
    pub(crate) sessions: SessionPool,
    pub(crate) events: EventSender,
    pub(crate) watch_requests: mpsc::UnboundedSender<(Arc<Entry>, Arc<Connection>)>,
    pub(crate) registry: Mutex<Registry>,
    pub(crate) reap_due: Notify,
    /// The highest floor above which the token base was raised.
    pub(crate) raised: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) closed: bool,
    pub(crate) entries: HashMap<ClaimId, Arc<Entry>, RandomState>,
    /// When holds end. A hold that was renewed meanwhile is pushed again when its old deadline is popped.
    pub(crate) deadlines: BinaryHeap<Reverse<(BootInstant, ClaimId)>>,
    pub(crate) lock_nodes: HashMap<LockName, LockNodeUse, RandomState>,
    /// Whether the reaper will run soon without being woken.
    pub(crate) reap_scheduled: bool,
}

impl State {
    pub(crate) fn new(
        config: Arc<Config>,
        sessions: SessionPool,
        events: EventSender,
        watch_requests: mpsc::UnboundedSender<(Arc<Entry>, Arc<Connection>)>,
    ) -> Self {
        Self {
            config,
            sessions,
            events,
            watch_requests,
            registry: Mutex::default(),
            reap_due: Notify::new(),
            raised: AtomicU64::new(0),
        }
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        match self.registry.lock().closed {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    pub(crate) fn entry(&self, id: ClaimId) -> Option<Arc<Entry>> {
        self.registry.lock().entries.get(&id).map(Arc::clone)
    }

    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        self.registry
            .lock()
            .entries
            .values()
            .map(Arc::clone)
            .collect()
    }

    /// Adds an entry for a claim, before its node is created.
    pub(crate) fn add(
        &self,
        claim: &Claim,
        managed: Arc<ManagedSession>,
        session: Arc<Session>,
    ) -> Arc<Entry> {
        let mut registry = self.registry.lock();
        let used = registry.lock_nodes.entry(claim.name.clone());
        let used = used.or_insert_with(|| LockNodeUse {
            uses: 0,
            ours: false,
            idle_since: Clock::Boot.now(),
            lock_node: Arc::new(LockNode::new(self.lock_node_path(&claim.name))),
        });
        used.uses += 1;
        let entry = Entry::new(claim, Arc::clone(&used.lock_node), managed, session);
        let entry = Arc::new(entry);
        registry.entries.insert(entry.id, Arc::clone(&entry));
        entry
    }

    /// Removes the entry of a claim that has no node any more. A newer entry of the same claim stays.
    pub(crate) fn remove(&self, entry: &Arc<Entry>) {
        let mut registry = self.registry.lock();
        let present = registry.entries.get(&entry.id);
        if !present.is_some_and(|present| Arc::ptr_eq(present, entry)) {
            return;
        }
        registry.entries.remove(&entry.id);
        let idle = match registry.lock_nodes.get_mut(&entry.name) {
            Some(used) => {
                used.uses -= 1;
                used.idle_since = Clock::Boot.now();
                used.uses == 0 && !registry.reap_scheduled
            }
            None => false,
        };
        drop(registry);
        if idle {
            self.reap_due.notify_one();
        }
    }

    /// Notes that a claim's lock node exists, and whether this client created it.
    pub(crate) fn note_lock_node(&self, entry: &Entry, ours: bool) {
        entry.lock_node.set_exists(true);
        if let Some(used) = self.registry.lock().lock_nodes.get_mut(&entry.name) {
            used.ours = ours;
        }
    }

    /// Notes that a claim holds, and when its node is deleted unless the hold is renewed: not earlier than before, unless it is
    /// to `shorten`. `false` if the claim has ended already.
    pub(crate) fn hold_until(&self, entry: &Entry, ends_at: BootInstant, shorten: bool) -> bool {
        let first = {
            let mut known = entry.known.lock();
            if known.has_ended() {
                return false;
            }
            let first = !known.held;
            known.held = true;
            known.ends_at = match first || shorten {
                true => ends_at,
                false => ends_at.max(known.ends_at),
            };
            first
        };
        // A renewed hold already has a deadline in the heap.
        if first {
            let mut registry = self.registry.lock();
            let next = registry.deadlines.peek();
            let is_next = next.is_none_or(|Reverse((at, _))| ends_at < *at);
            registry.deadlines.push(Reverse((ends_at, entry.id)));
            drop(registry);
            if is_next {
                self.reap_due.notify_one();
            }
        }
        true
    }

    pub(crate) fn lock_node_path(&self, name: &LockName) -> String {
        format!("{}/{}", self.config.root, names::encode(name))
    }

    pub(crate) fn claim_node_path(&self, name: &LockName, node: &str) -> String {
        format!("{}/{node}", self.lock_node_path(name))
    }

    pub(crate) fn release_notice_path(&self, node: &str) -> String {
        format!("{}/{}", self.config.root, names::release_notice(node))
    }

    pub(crate) fn queue(&self, name: &LockName, children: Vec<String>) -> Result<Queue> {
        Queue::new(children).map_err(|word| {let why = format!("a claim in the queue has the mode {word:?}, which this version does not know; use a newer fencelock");
Error::not_a_lock(&self.config.store, name, why)})
    }

    /// The children of a lock node, as this connection's server has them. `None` if the node does not exist.
    pub(crate) async fn children(
        &self,
        connection: &Connection,
        lock_node: &str,
    ) -> Result<Vec<String>, Failure> {
        let list = connection.client().list_children(lock_node);
        match connection.read(list).await {
            Err(Failure::Refused(Refusal::NoNode)) => Ok(Vec::new()),
            children => children,
        }
    }

    /// The children of a lock node that includes everything that the servers have acknowledged so far. `None` if the node does
    /// not exist.
    pub(crate) async fn fresh_children(
        &self,
        connection: &Connection,
        lock_node: &str,
    ) -> Result<Vec<String>, Failure> {
        let sync = connection.client().sync(self.config.root_path());
        let list = self.children(connection, lock_node);
        // Both requests are sent before the first reply is awaited.
        let (synced, children) = tokio::join!(connection.read(sync), list);
        match synced {
            Ok(()) | Err(Failure::Refused(_)) => children,
            Err(failure) => Err(failure),
        }
    }

    pub(crate) fn error(&self, action: impl Into<String>, failure: Failure) -> Error {
        error(&self.config, action, failure)
    }
}
