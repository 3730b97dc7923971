//! The state that all calls of one store share, apart from its servers: the waiting claims, the highest tokens seen, the
//! scripts.

use std::sync::atomic::{AtomicU64, Ordering};

use fencelock_core::engine::{Event, EventSender};
use fencelock_core::support::{Contention, inspect_only};
use fencelock_core::{ClaimId, Error, LockName, Result};
use redis::RedisError;
use tokio::sync::mpsc;

use crate::config::Config;
use crate::entry::{Entries, PushedGrant};
use crate::error::explain;
use crate::keys::{Keys, SLOTS};
use crate::scripts::Scripts;
use crate::stored::Message;

/// A task that a connection or a node hands to the store as a whole.
#[derive(Debug)]
pub(crate) enum Task {
    /// The server granted the lock to a claim that no longer waits here.
    GiveBack {
        claim: ClaimId,
        first: u64,
        name: LockName,
    },
    /// A server does not answer. Perhaps another one has replaced it.
    FindServers,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) scripts: Scripts,
    /// The channel of this process, without its prefix `fencelock:`.
    pub(crate) channel: String,
    pub(crate) entries: Entries,
    pub(crate) contention: Contention,
    /// The highest token seen, of the store or of each slot: later tokens must be above it.
    highest: Box<[AtomicU64]>,
    generations: AtomicU64,
    events: EventSender,
    tasks: mpsc::UnboundedSender<Task>,
}

impl State {
    pub(crate) fn new(
        config: Config,
        events: EventSender,
        tasks: mpsc::UnboundedSender<Task>,
    ) -> Result<Self> {
        let counters = if config.is_cluster() { SLOTS } else { 1 };
        Ok(Self {
            scripts: Scripts::new(config.timed()),
            config,
            channel: format!("{:016x}", random_u64()?),
            entries: Entries::default(),
            contention: Contention::default(),
            highest: (0..counters).map(|_| AtomicU64::new(0)).collect(),
            generations: AtomicU64::new(0),
            events,
            tasks,
        })
    }

    pub(crate) fn store(&self) -> &str {
        &self.config.store
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn keys<'a>(&self, name: &'a LockName) -> Keys<'a> {
        Keys::new(name, self.config.is_cluster())
    }

    /// Refuses an action that a store opened only for inspection cannot do.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for such a store.
    pub(crate) fn check_not_inspect_only(&self, what: &'static str) -> Result<()> {
        match self.config.inspect_only {
            true => Err(inspect_only(self.store(), what)),
            false => Ok(()),
        }
    }

    pub(crate) fn failed(&self, action: &str, name: Option<&LockName>, error: RedisError) -> Error {
        explain(self.store(), action, name, error)
    }

    pub(crate) fn highest(&self, slot: u16) -> u64 {
        self.highest[usize::from(slot)].load(Ordering::SeqCst)
    }

    /// Notes a token, or the value of the counter.
    pub(crate) fn saw(&self, slot: u16, token: u64) {
        self.highest[usize::from(slot)].fetch_max(token, Ordering::SeqCst);
    }

    /// Handles a message. `newest` if it came over the node's newest connection.
    pub(crate) fn receive(&self, message: Message, newest: bool) {
        match message {
            Message::Granted {
                claim,
                first,
                count,
                name,
            } => {
                let slot = self.keys(&name).slot;
                self.saw(slot, first + u64::from(count.max(1)) - 1);
                if !newest {
                    // Not needed: the newer connection may bring the same message, and every waiter is placed again over it.
                    return;
                }
                match self.entries.find(&claim) {
                    Some(entry) => entry.push(PushedGrant { first, count }),
                    None => self.ask_for(Task::GiveBack { claim, first, name }),
                }
            }
            Message::Lost(claim) => self.events.tell(Event::Lost(claim)),
            Message::Asked(claim) => self.events.tell(Event::Asked(claim)),
        }
    }

    pub(crate) fn ask_for(&self, task: Task) {
        let _ = self.tasks.send(task);
    }
}

/// Different in every process.
fn random_u64() -> Result<u64> {
    let id = fencelock_core::ClaimIds::new()?.next();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&id.as_bytes()[..8]);
    Ok(u64::from_be_bytes(bytes))
}
