//! Renews many holds in one request.

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{Clock, Error, Result};

use super::dialect::Dialect;
use super::pool::{Lane, attempt};
use super::state::State;

/// How many holds are renewed in one request.
const BATCH: usize = 500;

impl<D: Dialect> State<D> {
    pub(super) async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(held.len());
        for batch in held.chunks(BATCH) {
            match self.renew_batch(batch).await {
                Ok(renewed) => renewals.extend(renewed),
                Err(error) => {
                    // The other batches would wait as long again, and the validity of their holds ends meanwhile.
                    let rest = held.len() - renewals.len();
                    renewals.extend(crate::unknown(&self.pool.dialect, error, rest));
                    break;
                }
            }
        }
        renewals
    }

    async fn renew_batch(&self, held: &[HeldClaim]) -> Result<Vec<Renewal>> {
        let dialect = &self.pool.dialect;
        let mut call = self.pool.call("renewing holds");
        let (renewed, asked_at) = attempt!(call, Lane::Renewals, |session| {
            let asked_at = Clock::Boot.now();
            let renewed = dialect.renew(session, held).await;
            renewed.map(|renewed| (renewed, asked_at))
        });
        // An earlier request that may still arrive must not take effect after this one.
        if !call.lost.is_empty() && !self.settle("renewing holds", &call.lost).await? {
            return Err(Error::unsettled(dialect, "renewing holds"));
        }
        let renewals = held.iter().zip(renewed);
        let renewals = renewals.map(|(held, renewed)| match renewed {
            None => Renewal::Lost,
            Some(asked) => Renewal::kept(asked_at, held.claim.ttl, asked),
        });
        Ok(renewals.collect())
    }
}
