//! One attempt at a time at something that many tasks need. Tasks that waited for an attempt that failed share its error. If
//! each tried in turn, the last one would wait for all the others.

use std::time::Duration;

use fencelock_core::{Error, Result};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

#[derive(Debug, Default)]
pub(crate) struct SingleFlight(Mutex<Option<Failure>>);

#[derive(Debug)]
struct Failure {
    at: Instant,
    action: String,
    cause: String,
}

/// The right to try.
pub(crate) struct Attempt<'a> {
    queued_at: Instant,
    last_failure: MutexGuard<'a, Option<Failure>>,
}

impl SingleFlight {
    /// Waits until no other task tries. `None` if that takes too long.
    pub(crate) async fn begin(&self, limit: Duration) -> Option<Attempt<'_>> {
        let queued_at = Instant::now();
        let last_failure = timeout(limit, self.0.lock()).await.ok()?;
        Some(Attempt {
            queued_at,
            last_failure,
        })
    }
}

impl Attempt<'_> {
    /// Returns the failure of the attempt that this task waited for, if it failed.
    pub(crate) fn inherit(&self, store: &str) -> Result<()> {
        match &*self.last_failure {
            Some(Failure { at, action, cause }) if *at >= self.queued_at => {
                Err(Error::unavailable(store, action, cause.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Passes a failure on to the tasks that wait. Refusals are not shared, because they come quickly.
    pub(crate) fn fail(&mut self, error: &Error) {
        if let Error::Unavailable { action, cause, .. } = error {
            *self.last_failure = Some(Failure {
                at: Instant::now(),
                action: action.clone(),
                cause: cause.to_string(),
            });
        }
    }
}
