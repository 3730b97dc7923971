//! The client's state of one claim.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, ClaimId, LockName, Token};

use crate::connection::{Connection, Session};
use crate::lock_node::LockNode;
use crate::session::ManagedSession;
use crate::stored::ClaimData;

/// A claim's place at the servers.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: ClaimId,
    pub(crate) name: LockName,
    pub(crate) lock_node: Arc<LockNode>,
    known: Mutex<Known>,
}

/// What is known of a claim's place.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The session that its node belongs to.
    pub(crate) managed: Arc<ManagedSession>,
    pub(crate) session: Arc<Session>,
    /// Where the node may still be if a move's answer was lost.
    pub(crate) moved_from: Option<(Arc<ManagedSession>, Arc<Session>)>,
    pub(crate) node: Option<Node>,
    /// Something was asked of which no answer came: look before saying anything.
    pub(crate) uncertain: bool,
    pub(crate) held: bool,
    /// Its lease has ended, or it is being given up.
    pub(crate) ended: bool,
    /// When the node goes unless the hold is prolonged.
    pub(crate) ends_at: BootInstant,
    pub(crate) lock_delay: Duration,
    /// The first token, once it holds, and the one that the node names.
    pub(crate) first: Token,
    pub(crate) recorded: Token,
    pub(crate) count: u32,
    pub(crate) asked: bool,
    /// Whether the holder is there was asked last under this number.
    pub(crate) ping: Option<u64>,
    /// The nodes that must go first.
    pub(crate) waits_for: Vec<String>,
    /// The connection over which the node is watched.
    pub(crate) watched: Weak<Connection>,
}

/// A claim's node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its name, without the path.
    pub(crate) name: String,
    pub(crate) czxid: i64,
    /// Of its data.
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
        }
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        // Every change under this lock is whole before anything can panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// What the node of a hold is to say when its holder writes into it.
    pub(crate) fn data(&self, claim: &Claim, token: Token) -> ClaimData {
        ClaimData {
            tokens: Some((self.first, token)),
            asked: self.asked,
            // Answered by whoever watches the node, which this write wakes.
            ping: self.ping,
            ..ClaimData::of(claim, self.count)
        }
    }
}
