//! Waiting until the claim should be placed again.

use std::time::Duration;

use fencelock_core::Clock;
use fencelock_core::engine::{Claim, Place};

use super::state::State;

/// The nodes learn of a release at about the same time, give or take this.
const SPREAD: Duration = Duration::from_millis(1);

/// Returns when the claim should be placed again: no grant is pushed here.
pub(crate) async fn wait(state: &State, claim: &Claim, place: &Place) {
    match state.entries.find(&claim.id) {
        Some(entry) => {
            let _ = entry.next().await;
            tokio::time::sleep(SPREAD).await;
        }
        None => Clock::Boot.sleep_until(place.recheck).await,
    }
}
