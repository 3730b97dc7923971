//! Whether a node's clock was set, judged against this machine's, which never is.

use std::sync::{Mutex, PoisonError};

use fencelock_core::BootInstant;

/// A clock may run slower or faster by one part in so many.
const DRIFT: i64 = 100;
/// And may be off by so many microseconds more.
const SLACK: i64 = 2_000;

/// What is known of a node's clock.
#[derive(Debug, Default)]
pub(crate) struct NodeClock(Mutex<Option<Sample>>);

/// By how many microseconds the node's clock is ahead of ours: at least `low`, at most `high`.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: BootInstant,
    low: i64,
    high: i64,
}

impl NodeClock {
    /// The node said `micros` in answer to a request sent at `asked`, answered at `heard`. By how many microseconds its
    /// clock was set since it was last seen, if it was.
    pub(crate) fn see(&self, micros: i64, asked: BootInstant, heard: BootInstant) -> Option<i64> {
        let now = Sample {
            at: heard,
            low: micros - in_micros(heard),
            high: micros - in_micros(asked),
        };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = *last else {
            *last = Some(now);
            return None;
        };
        let elapsed = i64::try_from(heard.since(before.at).as_micros()).unwrap_or(i64::MAX);
        let allowed = elapsed / DRIFT + SLACK;
        if now.low > before.high + allowed || now.high < before.low - allowed {
            *last = Some(now);
            return Some((now.low + now.high) / 2 - (before.low + before.high) / 2);
        }
        // A wide sample says little; keep the better one for a while.
        if now.high - now.low <= before.high - before.low + allowed {
            *last = Some(now);
        }
        None
    }

    /// The node's time at an instant of ours, in microseconds, at most.
    pub(crate) fn at_most(&self, at: BootInstant) -> Option<i64> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|sample| in_micros(at) + sample.high)
    }
}

fn in_micros(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_clock_that_was_set_is_seen_and_a_slow_answer_is_not_taken_for_it() {
        let keeper = NodeClock::default();
        let seen = |millis: i64, asked, heard| keeper.see(millis * 1000, at(asked), at(heard));
        assert_eq!(seen(1_000_001, 1000, 1001), None);
        // The answer took long.
        assert_eq!(seen(1_000_600, 1002, 3000), None);
        // It drifts.
        assert_eq!(seen(1_010_050, 11_000, 11_001), None);
        // It was set forward by 20 ms, and back by an hour.
        let by = seen(1_010_090, 11_020, 11_021).unwrap();
        assert!((19_000..=21_000).contains(&by), "{by}");
        let by = seen(1_010_100 - 3_600_000, 11_030, 11_031).unwrap();
        assert!(by < -3_599_000_000, "{by}");
        assert_eq!(seen(1_010_110 - 3_600_000, 11_040, 11_041), None);
        assert_eq!(
            keeper.at_most(at(11_041)),
            Some((1_010_110 - 3_600_000) * 1000 + 1000)
        );
    }
}
