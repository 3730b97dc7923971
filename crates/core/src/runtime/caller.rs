//! The caller of a request: whether it still waits, and what the store said last.

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
    /// Another holds the lock.
    Held,
    /// There was no answer, or the store grants nothing at this time, for this reason.
    Failed(String),
}

/// Shared by a future and its rest, which may continue in the background.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    gone: AtomicBool,
    answered: AtomicBool,
    news: Notify,
    failure: Mutex<Option<String>>,
}

impl Caller {
    /// Notes that the future was dropped.
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

    /// Notes that the store answers, but grants nothing at this time.
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
