//! The caller of a request: is it still there, and what did the store say last?

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::background::Closing;
use crate::support::Mutex;
use crate::types::Error;

/// What the store said last about a request.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Nothing yet.
    Nothing,
    /// Somebody else holds the lock.
    Held,
    /// There was no answer, or nothing is granted to anybody, and this is why.
    Failed(String),
}

/// Shared by a future and by its rest, which may go on in the background.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    gone: AtomicBool,
    answered: AtomicBool,
    news: Notify,
    failure: Mutex<Option<String>>,
}

impl Caller {
    /// The future was dropped.
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Returns once the caller has gone away or the client was closed.
    pub(crate) async fn gone(&self, closing: &Closing) {
        let left = self.news.notified();
        tokio::pin!(left);
        left.as_mut().enable();
        if !self.is_gone() {
            tokio::select! {
                () = left => {}
                () = closing.closed() => {}
            }
        }
    }

    pub(crate) fn hear_answer(&self) {
        self.answered.store(true, Ordering::SeqCst);
    }

    pub(crate) fn hear_failure(&self, error: &Error) {
        *self.failure.lock() = Some(match error {
            Error::Unavailable { cause, .. } => cause.to_string(),
            other => other.to_string(),
        });
        self.answered.store(false, Ordering::SeqCst);
    }

    /// The store answers, and grants nothing to anybody.
    pub(crate) fn hear_stall(&self, why: &str) {
        *self.failure.lock() = Some(why.to_owned());
        self.answered.store(false, Ordering::SeqCst);
    }

    pub(crate) fn heard(&self) -> Heard {
        if self.answered.load(Ordering::SeqCst) {
            return Heard::Held;
        }
        self.failure
            .lock()
            .clone()
            .map_or(Heard::Nothing, Heard::Failed)
    }
}
