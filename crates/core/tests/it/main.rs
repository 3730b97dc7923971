//! The core's own logic on the memory engine, in paused time: seconds pass in microseconds, and in a fixed order.

#![allow(clippy::unwrap_used, missing_docs)]

mod anew;
mod at_least;
mod bad_days;
mod basics;
mod breaker;
mod cancel;
mod compound;
mod ends;
mod handoff;
#[cfg(feature = "metrics")]
mod metrics;
mod model;
mod refused;
mod sequencer;
mod spans;
mod unheard;

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::layers::{Fault, FaultHandle, Meter};
use fencelock_core::{Client, Clock, Memory};

/// A store in paused time. Each client is like a client of another process.
pub(crate) struct World {
    store: Memory,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Clock::Tokio(tokio::time::Instant::now());
        let store = Memory::with_clock(clock);
        Self { store }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Arc::new(self.store.another())).unwrap()
    }

    pub(crate) fn metered(&self) -> (Client, Arc<Meter>) {
        let meter = Arc::new(Meter::new(Arc::new(self.store.another())));
        (Client::new(meter.clone()).unwrap(), meter)
    }

    pub(crate) fn faulty(&self) -> (Client, FaultHandle) {
        let (fault, handle) = Fault::new(Arc::new(self.store.another()));
        (Client::new(Arc::new(fault)).unwrap(), handle)
    }

    /// The number of names that the store has.
    pub(crate) fn left(&self) -> usize {
        self.store.len()
    }
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Runs all tasks that are ready, while the clock stays where it is.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
