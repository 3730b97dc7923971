//! Renews holds, each on its own connection, and records what changed.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, LeaseKind, Renewal};
use fencelock_core::{BootInstant, ClaimId, Clock, Error, Result};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::dialect::{Dialect, Record};
use super::entry::{Entry, Hold};
use super::state::State;

/// A renewal. For a hold that was kept it also has the record, and whether the record is new.
type Renewed = (Renewal, Option<(Record, bool)>);

impl<D: Dialect> State<D> {
    pub(super) async fn renew(self: &Arc<Self>, held: &[HeldClaim]) -> Vec<Renewal> {
        // A silent connection, or a silent control connection, must not end the leases of the other holds. A renewal comes
        // after a third of the ttl; after both shares some of the ttl is left.
        let shortest = held.iter().map(|held| held.claim.ttl).min();
        let share = shortest.map_or(Duration::ZERO, |ttl| ttl / 4);
        let share = share.min(self.settings.response_timeout);
        let renewals = held.iter().map(|held| {
            let (state, held) = (Arc::clone(self), held.clone());
            async move {
                let renewed = in_share(share, async move { state.renew_one(&held).await });
                let silent = || (Renewal::Unknown(self.no_answer(share)), None);
                renewed.await.unwrap_or_else(silent)
            }
        });
        let mut renewals = join_all(renewals).await;
        self.record_renewed(&mut renewals, share).await;
        renewals.into_iter().map(|(renewal, _)| renewal).collect()
    }

    async fn renew_one(&self, held: &HeldClaim) -> Renewed {
        let Some(entry) = self.entry(held.claim.id) else {
            return (Renewal::Lost, None);
        };
        let mut entry = entry.lock().await;
        let Entry::Holding(hold) = &mut *entry else {
            return (Renewal::Lost, None);
        };
        if hold.conn.signal.is_closed() {
            return (Renewal::Ended(LeaseKind::Connection), None);
        }
        if !hold.tokens.contains(held.token) || hold.mode != held.claim.mode {
            // It holds by another grant.
            return (Renewal::Lost, None);
        }
        let claim = &match held.shorten {
            true => held.claim.clone(),
            false => hold.no_shorter(&held.claim),
        };
        match self.keep_alive(hold, claim).await {
            Ok(counted_from) => {
                let kept = Renewal::kept(counted_from, claim.ttl, false);
                let old = hold.recorded.as_ref();
                // A late renewal, from before the token was handed on, does not take it back.
                let token = old.map_or(held.token, |old| old.token.max(held.token));
                let record = hold.record(self.session_id(&hold.conn), claim, token);
                let is_new = !old.is_some_and(|old| old.agrees_with(&record));
                hold.listed |= is_new;
                (kept, Some((record, is_new)))
            }
            Err(_) if hold.conn.signal.is_closed() => (Renewal::Ended(LeaseKind::Connection), None),
            Err(error) => (Renewal::Unknown(error), None),
        }
    }

    /// A sign of life, at which the lease starts again.
    pub(super) async fn keep_alive(
        &self,
        hold: &mut Hold<D>,
        claim: &Claim,
    ) -> Result<BootInstant> {
        let asked_at = Clock::Boot.now();
        let action = format!("renewing lock {}", claim.name);
        let kept = self.dialect.keep_alive(&mut hold.conn.session, claim.ttl);
        self.within(&action, kept).await?;
        hold.lives(asked_at, claim.ttl);
        Ok(asked_at)
    }

    /// Records what changed about renewed holds, and learns which of them were asked to release.
    async fn record_renewed(self: &Arc<Self>, renewals: &mut [Renewed], share: Duration) {
        let kept = || renewals.iter().filter_map(|(_, record)| record.as_ref());
        let claims: Vec<ClaimId> = kept().map(|(record, _)| record.claim).collect();
        if claims.is_empty() {
            return;
        }
        let records: Vec<Record> = kept()
            .filter(|(_, is_new)| *is_new)
            .map(|(record, _)| record.clone())
            .collect();
        let state = Arc::clone(self);
        let recorded = in_share(share, async move {
            let asked_of = state.control.record(&records, &claims).await?;
            for record in records {
                if let Some(entry) = state.entry(record.claim)
                    && let Entry::Holding(hold) = &mut *entry.lock().await
                {
                    hold.recorded = Some(record);
                }
            }
            Ok(asked_of)
        });
        match recorded.await.unwrap_or_else(|| Err(self.no_answer(share))) {
            Ok(asked_of) => {
                for (renewal, record) in renewals {
                    if let (Renewal::Kept { asked, .. }, Some((record, _))) = (renewal, record) {
                        *asked = asked_of.contains(&record.claim);
                    }
                }
            }
            Err(error) => {
                let cause = error.to_string();
                let unrecorded = |cause: String| {
                    Error::unavailable(&*self.dialect, "recording who holds", cause)
                };
                for (renewal, record) in renewals {
                    if let Some((_, true)) = record {
                        *renewal = Renewal::Unknown(unrecorded(cause.clone()));
                    }
                }
            }
        }
    }

    fn no_answer(&self, share: Duration) -> Error {
        let why = format!("no answer within {share:?}");
        Error::unavailable(&*self.dialect, "renewing a lock", why)
    }
}

/// The call's answer within its share of time. A late call goes on in the background, because dropping it may end its
/// connection.
async fn in_share<T: Send + 'static>(
    share: Duration,
    call: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    timeout(share, tokio::spawn(call)).await.ok()?.ok()
}
