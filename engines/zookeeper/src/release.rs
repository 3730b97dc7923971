//! Leaving.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{BootInstant, Clock, Result};

use crate::entry::Spot;
use crate::error::Trouble;
use crate::state::Store;

impl Store {
    pub(crate) async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let trouble = |trouble| {
            let action = format!("withdrawing from lock {}", claim.name);
            self.error(action, trouble)
        };
        let Some(spot) = self.spot(claim.id) else {
            return Box::pin(self.absent(claim)).await.map_err(trouble);
        };
        let withdrawn = self.withdraw_from(&spot, claim, how).await;
        if withdrawn.is_err() && (how == Leave::Release || !spot.now().held) {
            // Its session may live for as long as this client: its node must not, whether or not anybody asks again.
            self.end_at(&spot, Clock::Boot.now());
        }
        withdrawn.map_err(trouble)
    }

    async fn withdraw_from(
        &self,
        spot: &Arc<Spot>,
        claim: &Claim,
        how: Leave,
    ) -> Result<Withdrawn, Trouble> {
        if spot.now().unsure {
            Box::pin(self.settle(spot)).await?;
        }
        let (held, over, stands) = {
            let now = spot.now();
            (now.held, now.over, now.node.is_some())
        };
        if how == Leave::Abandon && held && stands {
            let end = {
                let mut now = spot.now();
                now.over = true;
                // At the end of its validity a margin of the lease is left, and goes before the lock-delay.
                let margin = claim.ttl / 50 + Duration::from_millis(20);
                let end = Clock::Boot.now() + now.lock_delay;
                if now.until > end + margin {
                    end
                } else {
                    now.until
                }
            };
            if end > Clock::Boot.now() {
                self.end_at(spot, end);
                return Ok(Withdrawn::Expired);
            }
        }
        let was_there = self.leave(spot).await?;
        match (was_there, held) {
            (true, true) if over => Ok(Withdrawn::Expired),
            (true, true) => Ok(Withdrawn::Released),
            (_, false) => Ok(Withdrawn::LeftLine),
            (false, true) => Box::pin(self.absent(claim)).await,
        }
    }

    /// Has a claim's node deleted then, for as often as it takes.
    fn end_at(&self, spot: &Spot, end: BootInstant) {
        spot.now().until = end;
        self.state().ends.push(std::cmp::Reverse((end, spot.id)));
        self.work.notify_one();
    }

    /// What to say of a claim that is not there.
    async fn absent(&self, claim: &Claim) -> Result<Withdrawn, Trouble> {
        let link = self.line.link().await?;
        let children = self.fresh_children(&link, &claim.name).await?;
        Ok(match children.is_empty() {
            true => Withdrawn::Expired,
            false => Withdrawn::NotOwner,
        })
    }

    /// Takes a claim out of the line and out of the books; whether it was there.
    pub(crate) async fn leave(&self, spot: &Arc<Spot>) -> Result<bool, Trouble> {
        let was_there = self.delete(spot).await?;
        self.remove(spot);
        Ok(was_there)
    }
}
