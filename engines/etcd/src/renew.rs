//! Renewals: one keepalive for all holds of a session, and a transaction for each whose token or session changes.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{BootInstant, Clock, Error, Result};
use futures_util::stream::{self, StreamExt};

use crate::claims::Placed;
use crate::engine::Shared;
use crate::session::Session;

/// How many transactions go to the server at once.
const AT_ONCE: usize = 64;

impl Shared {
    pub(crate) async fn renew(self: &Arc<Self>, held: &[HeldClaim]) -> Vec<Renewal> {
        let asked = Clock::Boot.now();
        let each = held.iter().cloned().map(|held| {
            let shared = Arc::clone(self);
            async move { shared.on_its_session(&held).await }
        });
        let each: Vec<_> = each.collect();
        // In their order, and no more than that at a time.
        let sessions: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
        let mut checks: Vec<(Arc<Session>, Duration)> = Vec::new();
        for (held, session) in held.iter().zip(&sessions) {
            let Ok(Some(session)) = session else { continue };
            let ttl = held.claim.ttl;
            match checks
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, session))
            {
                Some((_, shortest)) => *shortest = ttl.min(*shortest),
                None => checks.push((Arc::clone(session), ttl)),
            }
        }
        let checked = checks.iter().map(|(session, ttl)| {
            // One that was checked just now for others will do.
            let since = asked
                .as_nanos()
                .saturating_sub((*ttl / 6).as_nanos() as u64);
            self.check(session, BootInstant::from_nanos(since))
        });
        let checked = futures_util::future::join_all(checked).await;
        let failures: Vec<_> = checks.iter().zip(&checked).collect();
        let answers = held.iter().zip(sessions).map(|(held, session)| {
            let session = match session {
                Ok(Some(session)) => session,
                Ok(None) => return Renewal::Lost,
                Err(error) => return Renewal::Unknown(error),
            };
            let failed = failures
                .iter()
                .find(|((of, _), _)| Arc::ptr_eq(of, &session));
            if let Some((_, Err(trouble))) = failed {
                let (store, text) = (&self.store.config.store, trouble.error.to_string());
                return Renewal::Unknown(Error::unavailable(store, "renewing holds", text));
            }
            self.kept(held, &session, asked)
        });
        answers.collect()
    }

    /// The session of a hold, after what had to be changed about it was. `None` if it does not hold.
    async fn on_its_session(self: &Arc<Self>, held: &HeldClaim) -> Result<Option<Arc<Session>>> {
        let claim = &held.claim;
        let Some(placed) = self.holding(held) else {
            return Ok(None);
        };
        let Some((revision, tokens)) = placed.there else {
            return Ok(None);
        };
        if placed.on.suits(claim, Self::alone(claim)) && placed.recorded() == Some(held.token) {
            return Ok(Some(placed.on));
        }
        let at = held.token.0.saturating_sub(tokens.first.0);
        let at = u32::try_from(at).unwrap_or(0);
        let on = self
            .move_to(claim, &placed.key, revision, placed.base, at)
            .await?;
        if let Some(on) = &on {
            // A member from before, so that it is not taken for gone if it was lost meanwhile.
            on.hold(
                claim,
                placed.key.as_bytes(),
                revision,
                tokens,
                Clock::Boot.now(),
            );
        }
        Ok(on)
    }

    fn holding(&self, held: &HeldClaim) -> Option<Placed> {
        let placed = self.claims().get(held.claim.id).cloned()?;
        (placed.holds && placed.on.is_member(held.claim.id)).then_some(placed)
    }

    /// The answer for a hold whose session was alive.
    fn kept(&self, held: &HeldClaim, session: &Arc<Session>, asked: BootInstant) -> Renewal {
        let claim = &held.claim;
        let Some(placed) = self.holding(held) else {
            return Renewal::Lost;
        };
        let Some((revision, tokens)) = placed.there else {
            return Renewal::Lost;
        };
        match session.hold(claim, placed.key.as_bytes(), revision, tokens, asked) {
            Some(grant) => Renewal::Kept {
                counted_from: grant.counted_from,
                lease: grant.lease,
                asked: false,
            },
            None => Renewal::Lost,
        }
    }
}
