//! Whether a server's clock is right and runs evenly: for [`Inspect::diagnose`](crate::engine::Inspect::diagnose).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::Finding;
use crate::types::{BootInstant, Clock};

/// A clock that differs by more than this is reported.
const APART: Duration = Duration::from_secs(1);
/// More than slewing a clock adds to a second, and more than the travel time of an answer explains.
const STEP: Duration = Duration::from_millis(50);

/// A server's clock, read a few times within a second, compared with this machine's.
///
/// ```
/// # use std::time::Duration;
/// # use fencelock_core::support::{Asked, ClockWatch};
/// let mut watch = ClockWatch::new("db:99");
/// for _ in 0..ClockWatch::TIMES {
///     let asked = Asked::now();
///     // … asks the server …
///     # let there = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
///     watch.told(asked, there);
/// }
/// assert!(watch.findings().is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct ClockWatch {
    name: String,
    seen: Vec<Seen>,
}

/// When the request was sent, for [`ClockWatch::told`].
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    boot: BootInstant,
    wall: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    asked: Asked,
    answered: Asked,
    there: Duration,
}

impl Asked {
    /// The present time: the request is about to be sent.
    #[must_use]
    pub fn now() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            boot: Clock::Boot.now(),
            wall: wall.unwrap_or_default(),
        }
    }
}

impl ClockWatch {
    /// How often to read the server's clock.
    pub const TIMES: usize = 6;
    /// The pause between two readings.
    pub const PAUSE: Duration = Duration::from_millis(200);

    /// A watch without readings yet. Findings call the server `name`.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            seen: Vec::with_capacity(Self::TIMES),
        }
    }

    /// Notes an answer that has just come: the time since the beginning of 1970, UTC, by the server's clock.
    pub fn told(&mut self, asked: Asked, there: Duration) {
        self.seen.push(Seen {
            asked,
            answered: Asked::now(),
            there,
        });
    }

    /// The findings from the answers.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let change = "keep all clocks right with NTP, and have it slew them, not step";
        let finding = |what| Finding::against_correctness(what, change.to_owned());
        let mut findings = Vec::new();
        if let Some((ahead, by)) = self.seen.first().and_then(Seen::apart) {
            findings.push(finding(format!(
                "the clock of {} is {} s {} this machine's: when it is set right, leases end early or late, and a server that \
                 lost its data counts tokens from its clock",
                self.name,
                by.as_secs(),
                if ahead { "ahead of" } else { "behind" },
            )));
        }
        let steps = self.seen.windows(2).filter_map(|two| two[0].step(two[1]));
        if let Some((forward, by)) = steps.max_by_key(|(_, by)| *by) {
            findings.push(finding(format!(
                "the clock of {} jumped {} by {by:.1?} while it was watched for a second: {}",
                self.name,
                if forward { "forward" } else { "back" },
                match forward {
                    true => "locks are given away while their holders believe",
                    false => "locks of holders that died are kept for too long",
                },
            )));
        }
        findings
    }
}

impl Seen {
    /// Whether the server's clock is ahead of this machine's, and by how much at least.
    fn apart(&self) -> Option<(bool, Duration)> {
        let ahead = self.there.checked_sub(self.answered.wall);
        let behind = self.asked.wall.checked_sub(self.there);
        let far = |by: &Duration| *by > APART;
        let ahead = ahead.filter(far).map(|by| (true, by));
        ahead.or(behind.filter(far).map(|by| (false, by)))
    }

    /// Whether the server's clock went forward, and by how much at least, in addition to the time that passed until `next`.
    fn step(&self, next: Self) -> Option<(bool, Duration)> {
        let least = next.asked.boot.since(self.answered.boot);
        let most = next.answered.boot.since(self.asked.boot);
        let far = |by: &Duration| *by > STEP;
        let forward = next.there.checked_sub(self.there + most);
        let back = (self.there + least).checked_sub(next.there);
        let forward = forward.filter(far).map(|by| (true, by));
        forward.or(back.filter(far).map(|by| (false, by)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings for answers that took 10 ms each, given as the time of the request and the answer, in ms.
    fn watched(answers: &[(u64, u64)]) -> Vec<String> {
        let at = |ms: u64| Asked {
            boot: BootInstant::from_nanos(ms * 1_000_000),
            wall: Duration::from_millis(1_000_000 + ms),
        };
        let mut watch = ClockWatch::new("s");
        watch.seen = answers
            .iter()
            .map(|(ms, there)| Seen {
                asked: at(*ms),
                answered: at(*ms + 10),
                there: Duration::from_millis(1_000_000 + there),
            })
            .collect();
        watch.findings().into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn offsets_and_jumps_are_distinguished_from_slow_answers() {
        assert_eq!(watched(&[]), [""; 0]);
        assert_eq!(watched(&[(0, 5), (200, 205), (400, 409)]), [""; 0]);
        // As late and as early as travel time and a slewed clock explain.
        assert_eq!(watched(&[(0, 0), (200, 258)]), [""; 0]);
        assert_eq!(watched(&[(0, 10), (200, 151)]), [""; 0]);
        let told = watched(&[(0, 5), (200, 5205), (400, 5400)]);
        assert!(
            told.len() == 1 && told[0].contains("jumped forward by 5.0s"),
            "{told:?}"
        );
        let told = watched(&[(0, 5), (200, 100)]);
        assert!(
            told.len() == 1 && told[0].contains("jumped back by 95.0ms"),
            "{told:?}"
        );
        let told = watched(&[(0, 3_600_000), (200, 3_600_200)]);
        assert!(
            told.len() == 1 && told[0].contains("is 3599 s ahead of"),
            "{told:?}"
        );
        let told = watched(&[(5000, 0), (5200, 200)]);
        assert!(
            told.len() == 1 && told[0].contains("is 5 s behind"),
            "{told:?}"
        );
    }
}
