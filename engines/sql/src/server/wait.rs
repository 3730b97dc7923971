//! Waits for a wake-up, a pushed grant, or a change that a poll finds.

use fencelock_core::engine::{Claim, Grant, Place};
use fencelock_core::support::jitter;
use fencelock_core::{Clock, Result};

use super::dialect::Dialect;
use super::pool::{Lane, attempt};
use super::state::{State, action};

impl<D: Dialect> State<D> {
    pub(super) async fn wait(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        let Some(entry) = self.entries.get(claim.id) else {
            return Ok(None);
        };
        let dialect = &self.pool.dialect;
        loop {
            let interval = entry.next_interval();
            let poll_at = match dialect.is_listening() {
                true => place.recheck,
                false => (Clock::Boot.now() + jitter(interval)).min(place.recheck),
            };
            tokio::select! {
                () = entry.woken() => {
                    let granted = entry.granted(claim);
                    if granted.is_some() {
                        self.forget(claim.id);
                    }
                    return Ok(granted);
                }
                () = Clock::Boot.sleep_until(poll_at) => {}
            }
            if poll_at == place.recheck {
                return Ok(None);
            }
            let mut call = self.pool.call(action("looking at", &claim.name));
            let version = attempt!(call, Lane::Others, |session| {
                dialect.version(session, &claim.name).await
            });
            if version != Some(entry.version()) {
                entry.reset_interval(place);
                return Ok(None);
            }
        }
    }
}
