//! One attempt at a time at what all who come need. Those who waited for one that failed have its failure: were each to try
//! in its turn, the last would wait for all the others.

use std::time::Duration;

use fencelock_core::{Error, Result};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};

#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Option<Failure>>);

/// The last one.
#[derive(Debug)]
struct Failure {
    at: Instant,
    action: String,
    cause: String,
}

/// The right to try.
pub(crate) struct Attempt<'a> {
    came: Instant,
    last: MutexGuard<'a, Option<Failure>>,
}

impl Attempts {
    /// Waits until nobody else tries; `None` if that takes too long.
    pub(crate) async fn begin(&self, limit: Duration) -> Option<Attempt<'_>> {
        let came = Instant::now();
        let last = timeout(limit, self.0.lock()).await.ok()?;
        Some(Attempt { came, last })
    }
}

impl Attempt<'_> {
    /// The failure of somebody else's attempt that was waited for.
    pub(crate) fn inherit(&self, store: &str) -> Result<()> {
        match &*self.last {
            Some(Failure { at, action, cause }) if *at >= self.came => {
                Err(Error::unavailable(store, action, cause.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Leaves a failure to those who wait. A refusal comes soon: each may have its own.
    pub(crate) fn fail(&mut self, error: &Error) {
        if let Error::Unavailable { action, cause, .. } = error {
            *self.last = Some(Failure {
                at: Instant::now(),
                action: action.clone(),
                cause: cause.to_string(),
            });
        }
    }
}
