//! The node of a lock's name, below which the nodes of its claims are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fencelock_core::BootInstant;

use crate::alone_hint::AloneHint;

/// The data of a lock's node that fencelock created as a container. (A server does not say whether a node is a container.)
pub(crate) const LOCK_NODE_DATA: &[u8] = b"fencelock";

/// A lock's node, and how this client uses it.
#[derive(Debug)]
pub(crate) struct LockNodeUse {
    /// How many claims of this client use it.
    pub(crate) uses: usize,
    /// Whether this client created it.
    pub(crate) ours: bool,
    pub(crate) idle_since: BootInstant,
    pub(crate) lock_node: Arc<LockNode>,
}

/// What the claims of one lock share.
#[derive(Debug)]
pub(crate) struct LockNode {
    pub(crate) path: String,
    /// Whether it existed according to this client's latest information.
    exists: AtomicBool,
    pub(crate) hint: AloneHint,
}

impl LockNode {
    pub(crate) fn new(path: String) -> Self {
        Self {
            path,
            exists: AtomicBool::new(false),
            hint: AloneHint::default(),
        }
    }

    pub(crate) fn exists(&self) -> bool {
        self.exists.load(SeqCst)
    }

    pub(crate) fn set_exists(&self, exists: bool) {
        self.exists.store(exists, SeqCst);
    }

    pub(crate) fn child(&self, node: &str) -> String {
        [&self.path, "/", node].concat()
    }
}
