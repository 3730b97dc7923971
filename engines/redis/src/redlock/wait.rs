//! Waiting until the claim should be placed again.

use std::time::Duration;

use fencelock_core::Clock;
use fencelock_core::engine::{Claim, Place};

use super::state::State;

/// By how much the times differ at which the nodes learn of a release.
const SPREAD: Duration = Duration::from_millis(1);

/// Returns when the claim should be placed again: Redlock pushes no grants.
pub(crate) async fn wait(state: &State, claim: &Claim, place: &Place) {
    match state.entries.find(&claim.id) {
        Some(entry) => {
            let _ = entry.next().await;
            tokio::time::sleep(SPREAD).await;
        }
        None => Clock::Boot.sleep_until(place.recheck).await,
    }
}
