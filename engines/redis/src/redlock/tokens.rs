//! The tokens of the claims of this process that hold: a claim that is placed again gets the token that it has, and no renewal
//! prolongs it under another token.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fencelock_core::engine::{Grant, HeldClaim};
use fencelock_core::{ClaimId, Token};

/// The tokens of the claims that hold.
#[derive(Debug, Default)]
pub(crate) struct HeldTokens(Mutex<HashMap<ClaimId, Token>>);

impl HeldTokens {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, claim: ClaimId, grant: &Grant) {
        self.all().insert(claim, grant.tokens.first);
    }

    pub(crate) fn forget(&self, claim: ClaimId) {
        self.all().remove(&claim);
    }

    pub(crate) fn of(&self, claim: ClaimId) -> Option<Token> {
        self.all().get(&claim).copied()
    }

    /// Whether the claim holds with another token than this one.
    pub(crate) fn differs(&self, held: &HeldClaim) -> bool {
        let token = self.of(held.claim.id);
        token.is_some_and(|token| token != held.token)
    }
}
