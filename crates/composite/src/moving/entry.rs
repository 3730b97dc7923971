//! What a process knows of one claim at each store.

use std::sync::Arc;

use fencelock_core::engine::{Grant, HeldClaim};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, LockName, Mode, Token, Tokens};
use tokio::sync::Mutex as AsyncMutex;

use crate::known::less_drift;

/// One claim of this process.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: LockName,
    /// By member. Locked during a call for the claim at that store, so that such calls run one at a time.
    halves: Vec<Arc<AsyncMutex<Half>>>,
    standing: Mutex<Standing>,
}

/// A claim at one store.
#[derive(Debug, Default)]
pub(crate) struct Half {
    /// The store may have something of the claim.
    pub(crate) asked: bool,
    /// The store's grant, as far as it is known.
    pub(crate) grant: Option<Grant>,
    /// The claim was withdrawn from this store, and must not be placed there again.
    pub(crate) over: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    /// The store whose tokens the hold has. Set once the client believes in the hold, and as long as that store has the same
    /// tokens.
    counts: Option<usize>,
    /// The tokens in which the client believes, and the mode of that grant.
    tokens: Option<(Tokens, Mode)>,
    waits: Waits,
}

/// What a claim waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Waits {
    #[default]
    ForNothing,
    /// Its turn at a store.
    AtStore(usize),
    /// The end of the hush after this version.
    ForPhase(u64),
}

impl Entry {
    pub(crate) fn new(name: LockName, members: usize) -> Self {
        Self {
            name,
            halves: (0..members).map(|_| Arc::default()).collect(),
            standing: Mutex::default(),
        }
    }

    pub(crate) fn half(&self, store: usize) -> &Arc<AsyncMutex<Half>> {
        &self.halves[store]
    }

    /// Whether a store may have something of the claim.
    pub(crate) async fn is_asked(&self) -> bool {
        for half in &self.halves {
            if half.lock().await.asked {
                return true;
            }
        }
        false
    }

    pub(crate) fn members(&self) -> usize {
        self.halves.len()
    }

    pub(crate) fn waits(&self) -> Waits {
        self.standing.lock().waits
    }

    pub(crate) fn wait_for(&self, waits: Waits) {
        self.standing.lock().waits = waits;
    }

    /// Notes that the client believes from now on, in these tokens of this store and in this mode.
    pub(crate) fn believe(&self, counts: usize, tokens: Tokens, mode: Mode) {
        let mut standing = self.standing.lock();
        standing.counts = Some(counts);
        standing.tokens = Some((tokens, mode));
        standing.waits = Waits::ForNothing;
    }

    /// Whether the client may believe in the hold at this moment: it has got a grant, and a store keeps one.
    pub(crate) async fn is_believed(&self, at: BootInstant) -> bool {
        if self.standing.lock().tokens.is_none() {
            return false;
        }
        for half in &self.halves {
            let grant = half.lock().await.grant;
            if grant.is_some_and(|grant| is_valid(&grant, at)) {
                return true;
            }
        }
        false
    }

    /// The mode of the grant in which the client believes, or did last.
    pub(crate) fn believed_mode(&self) -> Option<Mode> {
        let (_, mode) = self.standing.lock().tokens?;
        Some(mode)
    }

    /// Whether a renewal is for another grant than that in which the client believes.
    pub(crate) fn is_other(&self, held: &HeldClaim) -> bool {
        let believed = self.standing.lock().tokens;
        believed
            .is_some_and(|(tokens, mode)| !tokens.contains(held.token) || mode != held.claim.mode)
    }

    /// Notes that the store of the hold's tokens was left, and has granted other tokens since.
    pub(crate) fn outlive(&self) {
        self.standing.lock().counts = None;
    }

    pub(crate) fn counts(&self) -> Option<usize> {
        self.standing.lock().counts
    }

    /// The hold for a request to one store: with the token that the client uses, or the first token of the grant there.
    pub(crate) fn held_at(&self, store: usize, held: &HeldClaim, grant: &Grant) -> HeldClaim {
        let token: Token = match self.counts() == Some(store) {
            true => held.token,
            false => grant.tokens.first,
        };
        HeldClaim::new(held.claim.clone(), token).shorten(held.shorten)
    }
}

/// Whether a store certainly keeps a grant at this moment.
pub(crate) fn is_valid(grant: &Grant, at: BootInstant) -> bool {
    at < grant.counted_from + less_drift(grant.lease)
}
