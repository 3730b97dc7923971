//! Pauses between attempts.

use std::time::Duration;

/// Pauses that grow at random, so that many clients do not all try at the same times (decorrelated jitter: Brooker,
/// "Exponential backoff and jitter", 2015).
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::*;
/// # use fencelock_core::support::Backoff;
/// let longest = Duration::from_millis(100);
/// let mut backoff = Backoff::new(Duration::from_millis(2), longest);
/// assert!(backoff.next_pause() <= longest);
/// ```
#[derive(Clone, Debug)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    last: Duration,
}

impl Backoff {
    /// Pauses from `shortest` (1 ms at least) to `longest`.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        // At least some pause, since none at all would be a busy loop.
        let shortest = shortest.max(Duration::from_millis(1));
        Self {
            shortest,
            longest: longest.max(shortest),
            last: shortest,
        }
    }

    /// Begins with the shortest pause again: what failed works.
    pub fn reset(&mut self) {
        self.last = self.shortest;
    }

    /// The next pause: between the shortest and three times the last one.
    pub fn next_pause(&mut self) -> Duration {
        let low = self.shortest.as_micros() as u64;
        let high = (self.last.as_micros() as u64).saturating_mul(3).max(low);
        self.last = Duration::from_micros(fastrand::u64(low..=high)).min(self.longest);
        self.last
    }
}

/// A random time between half of the pause and all of it, so that many clients do not act at the same times.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::support::jitter;
/// let pause = Duration::from_millis(100);
/// assert!(jitter(pause) >= pause / 2 && jitter(pause) <= pause);
/// ```
#[must_use]
pub fn jitter(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_drawn_between_half_and_whole() {
        let pause = Duration::from_secs(8);
        for _ in 0..1000 {
            let drawn = jitter(pause);
            assert!(drawn >= pause / 2 && drawn <= pause, "{drawn:?}");
        }
    }
}
