use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::Clock;
use redis::RedisError;
use tokio::sync::Notify;

use crate::error::{Meaning, meaning};

/// Whether a connection can still be used. A broken one never recovers.
#[derive(Debug)]
pub(crate) struct Health {
    response_timeout: Duration,
    broken: AtomicBool,
    /// Notified when the connection breaks.
    wake_up: Arc<Notify>,
}

/// Since when requests have had no reply, in ns; 0 while they have.
#[derive(Debug, Default)]
pub(crate) struct Silence(AtomicU64);

impl Health {
    pub(crate) fn new(response_timeout: Duration, wake_up: Arc<Notify>) -> Self {
        Self {
            response_timeout,
            broken: AtomicBool::new(false),
            wake_up,
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::SeqCst)
    }

    /// Marks the connection broken, so that it is replaced.
    pub(crate) fn break_off(&self) {
        if !self.broken.swap(true, Ordering::SeqCst) {
            self.wake_up.notify_one();
        }
    }

    /// Judges the connection by the outcome of a request.
    pub(crate) fn note(&self, silence: &Silence, error: Option<&RedisError>) {
        match error.map(meaning) {
            None | Some(Meaning::Answered) => silence.end(),
            Some(Meaning::Silent) => {
                if silence.note() > self.response_timeout {
                    // No reply for two timeouts: a new connection may do better.
                    self.break_off();
                }
            }
            Some(Meaning::Broken) => self.break_off(),
        }
    }
}

impl Silence {
    fn end(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// Another request had no reply. Returns for how long there has been none.
    fn note(&self) -> Duration {
        let now = Clock::Boot.now().as_nanos();
        let since = self.0.load(Ordering::Relaxed);
        if since == 0 {
            self.0.store(now, Ordering::Relaxed);
            return Duration::ZERO;
        }
        Duration::from_nanos(now.saturating_sub(since))
    }
}
