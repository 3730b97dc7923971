//! Leaving.

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
            return Box::pin(self.withdrawn_without_node(claim))
                .await
                .map_err(failure);
        };
        let withdrawn = self.withdraw_from(&entry, claim, how).await;
        if withdrawn.is_err() && (how == Leave::Release || !entry.known().held) {
            // Its session may live for as long as this client: its node must not, whether or not anybody asks again.
            self.delete_at(&entry, Clock::Boot.now());
        }
        withdrawn.map_err(failure)
    }

    async fn withdraw_from(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        how: Leave,
    ) -> Result<Withdrawn, Failure> {
        if entry.known().uncertain {
            Box::pin(self.settle(entry)).await?;
        }
        let (held, ended, stands) = {
            let known = entry.known();
            (known.held, known.ended, known.node.is_some())
        };
        if how == Leave::Abandon && held && stands {
            let end = {
                let mut known = entry.known();
                known.ended = true;
                // At the end of its validity a margin of the lease is left, and goes before the lock-delay.
                let margin = claim.ttl / 50 + Duration::from_millis(20);
                let end = Clock::Boot.now() + known.lock_delay;
                if known.ends_at > end + margin {
                    end
                } else {
                    known.ends_at
                }
            };
            if end > Clock::Boot.now() {
                self.delete_at(entry, end);
                return Ok(Withdrawn::Expired);
            }
        }
        let was_there = self.leave(entry).await?;
        match (was_there, held) {
            (true, true) if ended => Ok(Withdrawn::Expired),
            (true, true) => Ok(Withdrawn::Released),
            (_, false) => Ok(Withdrawn::LeftLine),
            (false, true) => Box::pin(self.withdrawn_without_node(claim)).await,
        }
    }

    /// Has a claim's node deleted then, for as often as it takes.
    fn delete_at(&self, entry: &Entry, end: BootInstant) {
        entry.known().ends_at = end;
        self.registry()
            .deadlines
            .push(std::cmp::Reverse((end, entry.id)));
        self.reap_due.notify_one();
    }

    /// What to say of a claim that is not there.
    async fn withdrawn_without_node(&self, claim: &Claim) -> Result<Withdrawn, Failure> {
        let connection = self.waiting_session.connection().await?;
        let children = self.fresh_children(&connection, &claim.name).await?;
        Ok(match children.is_empty() {
            true => Withdrawn::Expired,
            false => Withdrawn::NotOwner,
        })
    }

    /// Takes a claim out of the line and out of the books; whether it was there.
    pub(crate) async fn leave(&self, entry: &Arc<Entry>) -> Result<bool, Failure> {
        let was_there = self.delete_node(entry).await?;
        self.remove(entry);
        Ok(was_there)
    }
}
