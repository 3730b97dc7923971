//! Waiting: one request after the other, each of which keeps the place in the queue and waits at the service for a while.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Standing};
use fencelock_core::support::Backoff;
use fencelock_core::{Clock, Error, Result};

use crate::acquire::put;
use crate::entry::Poll;
use crate::error::RequestError;
use crate::state::State;

/// The shortest and the longest pause after an answer that came long before it was expected.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// How long an answer may take beside the time that the request was to wait.
const SLACK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Waits for a claim that has a place. Returns the grant, or nothing if the place is not known here.
pub(crate) async fn wait(state: &Arc<State>, claim: &Claim) -> Result<Option<Grant>> {
    let mut early = Backoff::new(PAUSES.0, PAUSES.1);
    while state.entries.is_waiting(&claim.id) {
        if state.is_closed() {
            return Err(Error::Closed);
        }
        let begun = Clock::Boot.now();
        // If this wait is dropped, the request goes on to its answer: a release then knows that it cannot come late.
        let first = state.replicas.order(Some(&claim.id)).first().copied();
        let open = state.entries.poll(&claim.id, first.unwrap_or_default());
        let (own, claim) = (Arc::clone(state), claim.clone());
        let asked = tokio::spawn(async move { poll(&own, &claim, open).await });
        let answer = asked.await.unwrap_or_else(|ended| {
            let why = format!("a poll ended: {ended}");
            Err(Error::internal(&state.config.store, why).into())
        });
        match answer? {
            Standing::Held(grant) => return Ok(Some(grant)),
            Standing::Waiting(_) => {}
            // It waited, so this is no answer of the service.
            _ => return Ok(None),
        }
        if Clock::Boot.now().since(begun) < state.info.poll() / 4 {
            tokio::time::sleep(early.next_pause()).await;
        } else {
            early = Backoff::new(PAUSES.0, PAUSES.1);
        }
    }
    Ok(None)
}

async fn poll(state: &State, claim: &Claim, open: Poll) -> Result<Standing, RequestError> {
    let (wait, window) = (state.info.poll(), state.info.window());
    let limit = wait + (window / 4).clamp(SLACK.0, SLACK.1);
    put(state, claim, wait, limit, Some(open.replica)).await
}
