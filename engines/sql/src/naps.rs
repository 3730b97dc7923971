//! How long those sleep who look by themselves.

use std::time::Duration;

/// The longest time between two looks of one waiter.
const LONGEST_NAP: Duration = Duration::from_millis(500);

/// The nap after this one.
pub fn longer(nap: Duration) -> Duration {
    nap.mul_f32(1.5).min(LONGEST_NAP)
}

/// Between half and all of a nap, so that waiters do not look in step.
pub fn jitter(nap: Duration) -> Duration {
    nap.mul_f32(0.5 + fastrand::f32() / 2.0)
}
