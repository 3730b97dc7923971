//! One round of requests to several nodes: what they have answered so far, and the one who waits until that is enough.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// What is counted.
pub(crate) trait Tally {
    /// Whether the result is clear, or nothing more will come.
    fn is_enough(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Round<T> {
    tally: Mutex<T>,
    enough: Notify,
}

impl<T: Tally> Round<T> {
    pub(crate) fn new(tally: T) -> Arc<Self> {
        Arc::new(Self {
            tally: Mutex::new(tally),
            enough: Notify::new(),
        })
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, T> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has answered.
    pub(crate) fn count(&self, answer: impl FnOnce(&mut T)) {
        let mut tally = self.tally();
        answer(&mut tally);
        let enough = tally.is_enough();
        drop(tally);
        if enough {
            self.enough.notify_one();
        }
    }

    /// Returns when there are answers enough, or the time is over. What comes later is counted and not waited for.
    pub(crate) async fn enough(&self, patience: Duration) {
        let enough = async {
            while !self.tally().is_enough() {
                self.enough.notified().await;
            }
        };
        // Whichever comes first: who waits looks at the tally.
        drop(tokio::time::timeout(patience, enough).await);
    }
}
