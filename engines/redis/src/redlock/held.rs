//! The claims of this process that hold, each with its token: so that whoever places one again gets what it has, and nobody
//! prolongs it under another token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencelock_core::engine::{Claim, Grant, HeldClaim, Renewal};
use fencelock_core::{ClaimId, Result, Token, Tokens};

use super::Inner;

/// How long leases are after a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lasting {
    AsAsked,
    /// What there is of them is not taken away.
    NoShorter,
}

/// The tokens of the claims that hold.
#[derive(Debug, Default)]
pub(super) struct Held(Mutex<HashMap<ClaimId, Token>>);

impl Held {
    fn all(&self) -> MutexGuard<'_, HashMap<ClaimId, Token>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, claim: ClaimId, grant: &Grant) {
        self.all().insert(claim, grant.tokens.first);
    }

    pub(super) fn forget(&self, claim: ClaimId) {
        self.all().remove(&claim);
    }

    fn token(&self, claim: ClaimId) -> Option<Token> {
        self.all().get(&claim).copied()
    }

    /// Whether the claim holds, and by another token than this.
    fn is_by_another_token(&self, held: &HeldClaim) -> bool {
        let token = self.token(held.claim.id);
        token.is_some_and(|token| token != held.token)
    }
}

impl Inner {
    /// A claim that holds is placed again: prolongs it, and leaves it as it is. `None` if it does not hold.
    pub(super) async fn again(self: &Arc<Self>, claim: &Claim) -> Result<Option<Grant>> {
        let Some(token) = self.held.token(claim.id) else {
            return Ok(None);
        };
        let held = HeldClaim {
            claim: claim.clone(),
            token,
        };
        match self.renew_all(&[held], Lasting::NoShorter).await.pop() {
            Some(Renewal::Kept {
                counted_from,
                lease,
                ..
            }) => Ok(Some(Grant {
                tokens: Tokens::one(token),
                counted_from,
                lease,
                recorded: true,
            })),
            Some(Renewal::Unknown(error)) => Err(error),
            Some(Renewal::Lost) | None => Ok(None),
        }
    }

    /// Renews holds at all nodes, and forgets those that are lost.
    pub(super) async fn renew_all(
        self: &Arc<Self>,
        held: &[HeldClaim],
        lasting: Lasting,
    ) -> Vec<Renewal> {
        let mine = held
            .iter()
            .filter(|held| !self.held.is_by_another_token(held));
        let mine: Vec<HeldClaim> = mine.cloned().collect();
        let mut asked = Vec::with_capacity(mine.len());
        for some in mine.chunks(super::RENEWED_AT_ONCE) {
            asked.extend(self.renew_some(some, lasting).await);
        }
        for (held, renewal) in mine.iter().zip(&asked) {
            if matches!(renewal, Renewal::Lost) {
                self.held.forget(held.claim.id);
            }
        }
        if mine.len() == held.len() {
            return asked;
        }
        let mut asked = mine.iter().zip(asked).peekable();
        let renewals = held.iter().map(|held| {
            let is_next = |(next, _): &(&HeldClaim, Renewal)| {
                (next.claim.id, next.token) == (held.claim.id, held.token)
            };
            asked
                .next_if(is_next)
                .map_or(Renewal::Lost, |(_, renewal)| renewal)
        });
        renewals.collect()
    }
}
