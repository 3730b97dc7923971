//! The poll intervals of waiters.

use std::time::Duration;

/// The longest time between two polls of one waiter.
const LONGEST: Duration = Duration::from_millis(500);

/// The interval after this one.
pub fn longer(interval: Duration) -> Duration {
    interval.mul_f32(1.5).min(LONGEST)
}
