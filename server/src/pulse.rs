//! Whether the event loop runs: a task ticks, and measures how late each tick is. After a standstill (the process was stopped,
//! swapped out, or moved to another machine), clients no longer wait for the requests that it has read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock};

use crate::metrics::Metrics;

/// How often it ticks.
const PERIOD: Duration = Duration::from_millis(100);

/// The metrics are tidied once in this many ticks.
const TIDY: u32 = 50;

/// A process whose ticks are later than this is not well.
const UNWELL: Duration = Duration::from_secs(2);

/// The value of a time that has not come: no tick yet, or no pause.
const NEVER: u64 = u64::MAX;

/// The ticks of one replica. Times are in milliseconds since `begun`.
#[derive(Debug)]
pub(crate) struct Pulse {
    clock: Clock,
    begun: BootInstant,
    /// A standstill that is longer than this counts as a pause.
    pause: Duration,
    last: AtomicU64,
    /// The last tick before the latest pause.
    before_pause: AtomicU64,
}

impl Pulse {
    pub(crate) fn new(clock: Clock, window: Duration) -> Self {
        Self {
            begun: clock.now(),
            clock,
            pause: window / 2,
            last: AtomicU64::new(NEVER),
            before_pause: AtomicU64::new(NEVER),
        }
    }

    /// Ticks for as long as the replica exists.
    pub(crate) fn start(self: &Arc<Self>, metrics: Arc<Metrics>) {
        self.last.store(self.now(), Ordering::Relaxed);
        let pulse = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut ticks: u32 = 0;
            loop {
                tokio::time::sleep(PERIOD).await;
                let Some(pulse) = pulse.upgrade() else {
                    return;
                };
                let (lag, paused) = pulse.tick();
                metrics.lag(lag);
                if paused {
                    tracing::warn!(?lag, "this process stood still");
                    metrics.paused();
                }
                ticks = ticks.wrapping_add(1);
                if ticks.is_multiple_of(TIDY) {
                    metrics.tidy();
                }
            }
        });
    }

    fn now(&self) -> u64 {
        self.at(self.clock.now())
    }

    fn at(&self, time: BootInstant) -> u64 {
        u64::try_from(time.since(self.begun).as_millis()).unwrap_or(NEVER - 1)
    }

    /// Ticks once: returns how late the tick is, and whether that was a pause.
    fn tick(&self) -> (Duration, bool) {
        let lag = self.late();
        let last = self.last.swap(self.now(), Ordering::Relaxed);
        let paused = lag > self.pause;
        if paused {
            self.before_pause.store(last, Ordering::Relaxed);
        }
        (lag, paused)
    }

    /// How late the next tick is already.
    fn late(&self) -> Duration {
        match self.last.load(Ordering::Relaxed) {
            NEVER => Duration::ZERO,
            last => Duration::from_millis(self.now().saturating_sub(last)).saturating_sub(PERIOD),
        }
    }

    /// Whether the event loop turns.
    pub(crate) fn is_well(&self) -> bool {
        self.late() <= UNWELL
    }

    /// Whether the process stood still after this time. A standstill counts even if there was no tick since.
    pub(crate) fn stood_still_since(&self, received: BootInstant) -> bool {
        let received = self.at(received);
        let before = |tick: u64| tick != NEVER && received <= tick + PERIOD.as_millis() as u64;
        let stands_still = self.late() > self.pause;
        before(self.before_pause.load(Ordering::Relaxed))
            || stands_still && before(self.last.load(Ordering::Relaxed))
    }
}
