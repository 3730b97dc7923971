//! Releasing a hold, leaving the queue, and abandoning a hold that was lost.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{BootInstant, Clock, Result};

use crate::entry::Entry;
use crate::error::Failure;
use crate::state::State;

impl State {
    pub(crate) async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let failure = |failure| {
            let action = format!("withdrawing from lock {}", claim.name);
            self.error(action, failure)
        };
        let Some(entry) = self.entry(claim.id) else {
            let withdrawn = Box::pin(self.withdraw_unknown(claim)).await;
            return withdrawn.map_err(failure);
        };
        let withdrawn = self.withdraw_entry(&entry, claim, how).await;
        if withdrawn.is_err() && (how == Leave::Release || !entry.known.lock().held) {
            // Its session may live as long as this client. The node must not, even if nobody withdraws the claim again.
            self.delete_at(&entry, Clock::Boot.now());
        }
        withdrawn.map_err(failure)
    }

    async fn withdraw_entry(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        how: Leave,
    ) -> Result<Withdrawn, Failure> {
        if entry.known.lock().uncertain {
            Box::pin(self.settle(entry)).await?;
        }
        let (held, ended, exists) = {
            let known = entry.known.lock();
            (known.held, known.ended, known.node.is_some())
        };
        if how == Leave::Abandon && held && exists {
            let end = abandon(entry, claim);
            if end > Clock::Boot.now() {
                self.delete_at(entry, end);
                return Ok(Withdrawn::Expired);
            }
        }
        let existed = self.leave(entry).await?;
        match (existed, held) {
            (true, true) if ended => Ok(Withdrawn::Expired),
            (true, true) => Ok(Withdrawn::Released),
            (_, false) => Ok(Withdrawn::LeftQueue),
            (false, true) => Box::pin(self.withdraw_unknown(claim)).await,
        }
    }

    /// Has the reaper delete a claim's node at this time. It tries until it succeeds.
    fn delete_at(&self, entry: &Entry, end: BootInstant) {
        entry.known.lock().ends_at = end;
        self.registry
            .lock()
            .deadlines
            .push(Reverse((end, entry.id)));
        self.reap_due.notify_one();
    }

    /// The answer for a claim that has no node.
    async fn withdraw_unknown(&self, claim: &Claim) -> Result<Withdrawn, Failure> {
        let connection = self.sessions.waiting.connection().await?;
        let lock_node = self.lock_node_path(&claim.name);
        let children = self.fresh_children(&connection, &lock_node).await?;
        Ok(match children.is_empty() {
            true => Withdrawn::Expired,
            false => Withdrawn::NotOwner,
        })
    }

    /// Deletes a claim's node and its entry; `false` if the node did not exist.
    pub(crate) async fn leave(&self, entry: &Arc<Entry>) -> Result<bool, Failure> {
        let existed = self.delete_node(entry).await?;
        self.remove(entry);
        Ok(existed)
    }
}

/// Ends a hold without releasing it. Returns when its node must be deleted: after the lock-delay.
fn abandon(entry: &Entry, claim: &Claim) -> BootInstant {
    let mut known = entry.known.lock();
    known.ended = true;
    let end = Clock::Boot.now() + known.lock_delay;
    // The core ends a hold a margin before its lease ends: then the rest of the lease counts towards the lock-delay.
    let margin = claim.ttl / 50 + Duration::from_millis(20);
    if known.ends_at > end + margin {
        end
    } else {
        known.ends_at
    }
}
