//! Whether a node's clock was set, by comparison with this machine's boot clock, which cannot be set.

use fencelock_core::BootInstant;
use fencelock_core::support::Mutex;

/// A clock may run slower or faster by one part in this many.
const DRIFT: i64 = 100;
/// A clock may also differ by this many microseconds.
const SLACK: i64 = 2_000;

/// What is known about a node's clock.
#[derive(Debug, Default)]
pub(crate) struct NodeClock(Mutex<Option<Sample>>);

/// The node's clock minus this machine's, in microseconds: at least `low`, at most `high`.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: BootInstant,
    low: i64,
    high: i64,
}

impl NodeClock {
    /// Notes the node's time `micros`, from the reply to a request sent at `asked` and answered at `heard`. Returns by how
    /// many microseconds its clock was set since the last sample, if it was.
    pub(crate) fn see(&self, micros: i64, asked: BootInstant, heard: BootInstant) -> Option<i64> {
        let now = Sample {
            at: heard,
            low: micros - in_micros(heard),
            high: micros - in_micros(asked),
        };
        let mut last = self.0.lock();
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
        // A wide sample is imprecise, so the better one is kept for a while.
        if now.high - now.low <= before.high - before.low + allowed {
            *last = Some(now);
        }
        None
    }

    /// The latest time in microseconds that the node's clock can show at an instant of this machine's clock.
    pub(crate) fn at_most(&self, at: BootInstant) -> Option<i64> {
        let last = self.0.lock();
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
    fn a_set_clock_is_noticed_and_a_slow_reply_is_not_mistaken_for_one() {
        let clock = NodeClock::default();
        let seen = |millis: i64, asked, heard| clock.see(millis * 1000, at(asked), at(heard));
        assert_eq!(seen(1_000_001, 1000, 1001), None);
        // A slow reply.
        assert_eq!(seen(1_000_600, 1002, 3000), None);
        // Drift.
        assert_eq!(seen(1_010_050, 11_000, 11_001), None);
        // Set forward by 20 ms, and back by an hour.
        let by = seen(1_010_090, 11_020, 11_021).unwrap();
        assert!((19_000..=21_000).contains(&by), "{by}");
        let by = seen(1_010_100 - 3_600_000, 11_030, 11_031).unwrap();
        assert!(by < -3_599_000_000, "{by}");
        assert_eq!(seen(1_010_110 - 3_600_000, 11_040, 11_041), None);
        assert_eq!(
            clock.at_most(at(11_041)),
            Some((1_010_110 - 3_600_000) * 1000 + 1000)
        );
    }
}
