//! The state that all calls of one store share.

use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::engine::{Event, EventSender};
use fencelock_core::support::Contention;
use fencelock_core::{ClaimId, ClaimIds, Result};
use tokio::sync::watch;

use super::config::Config;
use super::node::{Node, Voters};
use super::scripts::Scripts;
use super::tokens::HeldTokens;
use crate::entry::Entries;
use crate::machine::Machine;
use crate::stored::Message;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) machine: Machine,
    pub(crate) scripts: Scripts,
    pub(crate) nodes: Vec<Arc<Node>>,
    /// The channel of this process, without its prefix `fencelock:`.
    pub(crate) channel: String,
    pub(crate) entries: Entries,
    pub(crate) tokens: HeldTokens,
    pub(crate) contention: Contention,
    attempts: AtomicU64,
    events: EventSender,
    closed: watch::Sender<bool>,
    /// Counts the changes of the nodes.
    changes: watch::Sender<u64>,
    /// The longest lease in use by any client, in ms.
    longest: AtomicU64,
}

impl State {
    pub(crate) fn new(config: Config, events: EventSender) -> Result<Self> {
        let names = config.nodes.iter().map(|(name, _)| name.clone());
        let nodes = names
            .enumerate()
            .map(|(index, name)| Arc::new(Node::new(index, name)))
            .collect();
        Ok(Self {
            config,
            machine: Machine::this(),
            scripts: Scripts::new(),
            nodes,
            channel: ClaimIds::new()?.next().to_string(),
            entries: Entries::default(),
            tokens: HeldTokens::default(),
            contention: Contention::default(),
            attempts: AtomicU64::new(0),
            events,
            closed: watch::Sender::new(false),
            changes: watch::Sender::new(0),
            longest: AtomicU64::new(0),
        })
    }

    pub(crate) fn next_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The nodes that have the scripts.
    pub(crate) fn members(&self) -> Voters {
        let nodes = self.nodes.iter();
        nodes
            .filter_map(|node| Some((Arc::clone(node), node.member()?)))
            .collect()
    }

    /// Notes that something happened to a node.
    pub(crate) fn node_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(crate) fn node_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Returns when the engine is closed or dropped.
    pub(crate) fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut closed = self.closed.subscribe();
        async move {
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
        self.entries.wake_all();
    }

    /// The longest lease in use by any client, as far as this process knows.
    pub(crate) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::SeqCst))
    }

    pub(crate) fn saw_longest(&self, millis: u64) {
        self.longest.fetch_max(millis, Ordering::SeqCst);
    }

    /// How long a node that may have lost grants does not vote.
    pub(crate) fn delay(&self) -> Duration {
        self.config.delay(self.longest())
    }

    /// Handles a message: `w` and a claim's id wakes that waiter.
    pub(crate) fn receive(&self, payload: &[u8]) {
        if let Some((b'w', id)) = payload.split_first()
            && let Ok(id) = std::str::from_utf8(id)
            && let Ok(id) = ClaimId::from_str(id)
            && let Some(entry) = self.entries.find(&id)
        {
            entry.wake();
            return;
        }
        let event = match Message::parse(payload) {
            Some(Message::Lost(claim)) => Event::Lost(claim),
            Some(Message::Asked(claim)) => Event::Asked(claim),
            _ => return,
        };
        self.events.tell(event);
    }
}
