//! The poll intervals of waiters.

use std::time::Duration;

/// The longest time between two polls of one waiter.
const LONGEST: Duration = Duration::from_millis(500);

/// The interval after this one.
pub fn longer(interval: Duration) -> Duration {
    interval.mul_f32(1.5).min(LONGEST)
}

/// A random time between half of the interval and all of it, so that waiters do not poll in step.
pub fn jitter(interval: Duration) -> Duration {
    interval.mul_f32(0.5 + fastrand::f32() / 2.0)
}
