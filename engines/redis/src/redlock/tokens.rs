//! The tokens of the claims of this process that hold. If such a claim is placed again, it gets the token that it already has.
//! No renewal prolongs it under another token.

use std::collections::HashMap;

use fencelock_core::engine::{Grant, HeldClaim};
use fencelock_core::support::Mutex;
use fencelock_core::{ClaimId, Token};

#[derive(Debug, Default)]
pub(crate) struct HeldTokens(Mutex<HashMap<ClaimId, Token>>);

impl HeldTokens {
    pub(crate) fn note(&self, claim: ClaimId, grant: &Grant) {
        self.0.lock().insert(claim, grant.tokens.first);
    }

    pub(crate) fn forget(&self, claim: ClaimId) {
        self.0.lock().remove(&claim);
    }

    pub(crate) fn of(&self, claim: ClaimId) -> Option<Token> {
        self.0.lock().get(&claim).copied()
    }

    /// Whether the claim holds with another token than this one.
    pub(crate) fn differs(&self, held: &HeldClaim) -> bool {
        let token = self.of(held.claim.id);
        token.is_some_and(|token| token != held.token)
    }
}
