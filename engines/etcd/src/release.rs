//! Releasing a lock that others wait for: its holder says that it held.
//!
//! Whoever stands behind a claim that ends must know whether others stood before that one. One that held had nobody before it;
//! but a key may also end because its claim left the line, or because its session did. So the release of a hold puts another
//! key in the same transaction, and whoever waits for the turn after it watches both. The other key is on the same lease,
//! is put again by the next release under the same key, and deleted when there was none for a while.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp, TxnOpResponse};
use fencelock_core::Mode;
use fencelock_core::engine::Claim;
use tokio::time::Instant;

use crate::claims::Placed;
use crate::engine::Shared;
use crate::layout::released;
use crate::refusal::Trouble;

/// For how long the word of a release stays.
const KEPT: Duration = Duration::from_secs(1);

/// The keys that tell of releases, and when each was put.
pub(crate) type Released = HashMap<String, Instant>;

impl Shared {
    /// Deletes a claim's key; false if there was none. No other claim has had it meanwhile, nor will one if there is no answer.
    pub(crate) async fn release(
        self: &Arc<Self>,
        claim: &Claim,
        placed: &Placed,
    ) -> Result<bool, Trouble> {
        let held_alone = placed.holds && placed.mode == Mode::Exclusive;
        let wanted = self.claims().is_hot(&claim.name);
        match released(placed.key.as_bytes()).filter(|_| held_alone && wanted) {
            Some(told) => self.release_aloud(placed, told).await,
            None => self.delete_any(&placed.key).await,
        }
    }

    async fn release_aloud(
        self: &Arc<Self>,
        placed: &Placed,
        told: String,
    ) -> Result<bool, Trouble> {
        self.tidy_up_after(&told);
        let on = PutOptions::new().with_lease(placed.on.lease);
        let release = Txn::new().and_then([
            TxnOp::delete(placed.key.as_bytes(), None),
            TxnOp::put(told, "", Some(on)),
        ]);
        let answer = match self.store.txn(|| "releasing".into(), release).await {
            Ok(answer) => answer,
            // Nothing was done.
            Err(trouble) if trouble.lease_gone => return self.delete_any(&placed.key).await,
            Err(trouble) => return Err(trouble),
        };
        Ok(answer
            .op_responses()
            .iter()
            .any(|op| matches!(op, TxnOpResponse::Delete(deleted) if deleted.deleted() > 0)))
    }

    /// Has the word of a release deleted when it is of no use any more.
    fn tidy_up_after(self: &Arc<Self>, told: &str) {
        let before = {
            let mut released = self.released();
            let before = released.len();
            released.insert(told.to_owned(), Instant::now());
            before
        };
        if before == 0 {
            self.spawn(tidy_up(Arc::clone(self)));
        }
    }

    fn released(&self) -> MutexGuard<'_, Released> {
        self.released.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes those out that are old enough; `None` if there were none at all.
    fn take_old(&self) -> Option<Vec<String>> {
        let mut released = self.released();
        if released.is_empty() {
            return None;
        }
        let old = released.extract_if(|_, put| put.elapsed() >= KEPT);
        Some(old.map(|(told, _)| told).collect())
    }
}

async fn tidy_up(shared: Arc<Shared>) {
    while let Some(old) = shared.take_old() {
        for told in old {
            // What is left because of an error ends with its session.
            if let Err(trouble) = shared.delete_any(&told).await {
                let error = fencelock_core::Error::from(trouble);
                tracing::debug!(%error, "the word of a release stays");
            }
        }
        tokio::time::sleep(KEPT / 2).await;
    }
}
