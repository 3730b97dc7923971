use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, LockName, Mode, Token, Tokens};

use crate::connection::{Connection, Session};
use crate::lock_node::LockNode;
use crate::names;
use crate::session::ManagedSession;
use crate::stored::ClaimData;

/// One node of a claim, from before it is created until after it is deleted. A claim that needs a new node gets a new entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: ClaimId,
    pub(crate) name: LockName,
    pub(crate) lock_node: Arc<LockNode>,
    pub(crate) known: Mutex<Known>,
    watches: Mutex<Watches>,
}

/// Watches that nobody waits for any more.
#[derive(Default)]
struct Watches(Vec<Spent>);

/// A watch as long as it is not dropped.
pub(crate) type Spent = Pin<Box<dyn Future<Output = ()> + Send>>;

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The session that its node belongs to.
    pub(crate) managed: Arc<ManagedSession>,
    pub(crate) session: Arc<Session>,
    /// The session that its node may still belong to, while a move to another session has no reply.
    pub(crate) moved_from: Option<(Arc<ManagedSession>, Arc<Session>)>,
    pub(crate) node: Option<Node>,
    /// Set while a request has no reply: its outcome must be read before anything else is done.
    pub(crate) uncertain: bool,
    pub(crate) held: bool,
    /// Its lease has ended, or its node is being deleted.
    pub(crate) ended: bool,
    /// When its node is deleted unless the hold is renewed.
    pub(crate) ends_at: BootInstant,
    pub(crate) lock_delay: Duration,
    pub(crate) first: Token,
    /// The token that its node names.
    pub(crate) recorded: Token,
    pub(crate) count: u32,
    /// Whether another client asked for the lock.
    pub(crate) asked: bool,
    /// The number of the last ping (see `attest.rs`).
    pub(crate) ping: Option<u64>,
    /// The paths of the nodes for which the claim waits: it may hold only after one of them is gone.
    pub(crate) waits_for: Vec<String>,
    /// The connection over which its node is watched.
    pub(crate) watched: Weak<Connection>,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The name without the path.
    pub(crate) name: String,
    /// The transaction that created it, or the node that it replaced.
    pub(crate) czxid: i64,
    pub(crate) version: i32,
}

impl Entry {
    pub(crate) fn new(
        claim: &Claim,
        lock_node: Arc<LockNode>,
        managed: Arc<ManagedSession>,
        session: Arc<Session>,
    ) -> Self {
        let known = Known {
            managed,
            session,
            moved_from: None,
            node: None,
            uncertain: false,
            held: false,
            ended: false,
            ends_at: BootInstant::from_nanos(u64::MAX),
            lock_delay: claim.lock_delay,
            first: Token(0),
            recorded: Token(0),
            count: 1,
            asked: false,
            ping: None,
            waits_for: Vec::new(),
            watched: Weak::new(),
        };
        Self {
            id: claim.id,
            name: claim.name.clone(),
            lock_node,
            known: Mutex::new(known),
            watches: Mutex::default(),
        }
    }

    /// Keeps these watches as long as the claim.
    pub(crate) fn keep_watching(&self, watches: [Spent; 2]) {
        self.watches.lock().0.extend(watches);
    }
}

impl Known {
    /// The mode of its node.
    pub(crate) fn mode(&self) -> Option<Mode> {
        names::mode_of(&self.node.as_ref()?.name)
    }

    /// Whether the hold has ended, or will be ended by the reaper as soon as that runs.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.ended |= self.ends_at <= Clock::Boot.now();
        self.ended
    }

    /// The tokens of the grant by which the claim holds.
    pub(crate) fn tokens(&self) -> Tokens {
        Tokens::new(self.first, self.count)
    }

    /// Whether the claim held in exclusive mode after it had waited. Then others may wait behind it, and nobody is before it.
    pub(crate) fn tells_of_release(&self, id: ClaimId) -> bool {
        let node = self.node.as_ref().map_or("", |node| &node.name);
        let is_exclusive = node.starts_with(&names::claim_prefix(id, Mode::Exclusive));
        self.held && is_exclusive && !self.waits_for.is_empty()
    }

    /// The data that the holder writes into its node.
    pub(crate) fn data(&self, claim: &Claim, token: Token) -> ClaimData {
        ClaimData {
            tokens: Some((self.first, token)),
            asked: self.asked,
            // This write fires the watch on the node. The ping is answered then.
            ping: self.ping,
            ..ClaimData::of(claim, self.count)
        }
    }
}
