//! One round of requests to several nodes: it counts the replies until they suffice.

use fencelock_core::support::Mutex;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

pub(crate) trait Tally {
    /// Whether the result is certain, or no more replies will come.
    fn is_enough(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Round<T> {
    pub(crate) tally: Mutex<T>,
    enough: Notify,
}

impl<T: Tally> Round<T> {
    pub(crate) fn new(tally: T) -> Arc<Self> {
        Arc::new(Self {
            tally: Mutex::new(tally),
            enough: Notify::new(),
        })
    }

    /// Counts the reply of one node.
    pub(crate) fn count(&self, answer: impl FnOnce(&mut T)) {
        let mut tally = self.tally.lock();
        answer(&mut tally);
        let enough = tally.is_enough();
        drop(tally);
        if enough {
            self.enough.notify_one();
        }
    }

    /// Returns when the replies suffice, or after the timeout. Later replies are still counted.
    pub(crate) async fn enough(&self, timeout: Duration) {
        let enough = async {
            while !self.tally.lock().is_enough() {
                self.enough.notified().await;
            }
        };
        // The caller reads the tally in either case.
        drop(tokio::time::timeout(timeout, enough).await);
    }
}
