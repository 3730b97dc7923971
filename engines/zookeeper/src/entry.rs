//! The client's state of one claim.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, ClaimId, LockName, Token};

use crate::connection::{Life, Link};
use crate::lock_node::Above;
use crate::session::Session;
use crate::stored::Data;

/// A claim's place at the servers.
#[derive(Debug)]
pub(crate) struct Spot {
    pub(crate) id: ClaimId,
    pub(crate) name: LockName,
    pub(crate) above: Arc<Above>,
    now: Mutex<Now>,
}

/// What is known of a claim's place.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    /// The session that its node belongs to.
    pub(crate) session: Arc<Session>,
    pub(crate) life: Arc<Life>,
    /// Where the node may still be if a move's answer was lost.
    pub(crate) from: Option<(Arc<Session>, Arc<Life>)>,
    pub(crate) node: Option<Node>,
    /// Something was asked of which no answer came: look before saying anything.
    pub(crate) unsure: bool,
    pub(crate) held: bool,
    /// Its lease has ended, or it is being given up.
    pub(crate) over: bool,
    /// When the node goes unless the hold is prolonged.
    pub(crate) until: BootInstant,
    pub(crate) lock_delay: Duration,
    /// The first token, once it holds, and the one that the node names.
    pub(crate) first: Token,
    pub(crate) recorded: Token,
    pub(crate) count: u32,
    pub(crate) asked: bool,
    /// Whether the holder is there was asked last under this number.
    pub(crate) ping: Option<u64>,
    /// The nodes that must go first.
    pub(crate) behind: Vec<String>,
    /// The connection over which the node is watched.
    pub(crate) watched: Weak<Link>,
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

impl Spot {
    pub(crate) fn new(
        claim: &Claim,
        above: Arc<Above>,
        session: Arc<Session>,
        life: Arc<Life>,
    ) -> Self {
        let now = Now {
            session,
            life,
            from: None,
            node: None,
            unsure: false,
            held: false,
            over: false,
            until: BootInstant::from_nanos(u64::MAX),
            lock_delay: claim.lock_delay,
            first: Token(0),
            recorded: Token(0),
            count: 1,
            asked: false,
            ping: None,
            behind: Vec::new(),
            watched: Weak::new(),
        };
        Self {
            id: claim.id,
            name: claim.name.clone(),
            above,
            now: Mutex::new(now),
        }
    }

    pub(crate) fn now(&self) -> MutexGuard<'_, Now> {
        // Every change under this lock is whole before anything can panic.
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    /// What the node of a hold is to say when its holder writes into it.
    pub(crate) fn data(&self, claim: &Claim, token: Token) -> Data {
        Data {
            tokens: Some((self.first, token)),
            asked: self.asked,
            // Answered by whoever watches the node, which this write wakes.
            ping: self.ping,
            ..Data::of(claim, self.count)
        }
    }
}
