//! How often locks were granted, refused and lost here within the last hour, by the minute.

use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, Clock};

/// How many minutes are kept.
pub(crate) const MINUTES: usize = 60;

/// What happened within one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    /// Grants that needed no wait.
    pub(crate) at_once: u64,
    /// Grants after a wait.
    pub(crate) waited: u64,
    /// Requests that were refused, since others held the lock.
    pub(crate) refused: u64,
    /// Holds that ended before their release.
    pub(crate) lost: u64,
}

/// The last minutes.
#[derive(Debug)]
pub(crate) struct Hour {
    begun: BootInstant,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    minutes: [Minute; MINUTES],
    /// The last minute in which something happened, counted from `begun`.
    last: u64,
}

impl Hour {
    pub(crate) fn new() -> Self {
        Self {
            begun: Clock::Boot.now(),
            kept: Mutex::new(Kept {
                minutes: [Minute::default(); MINUTES],
                last: 0,
            }),
        }
    }

    /// Counts something that happens now.
    pub(crate) fn note(&self, count: impl FnOnce(&mut Minute)) {
        self.note_at(self.now(), count);
    }

    /// The minutes, oldest first. The last one is not over yet.
    pub(crate) fn minutes(&self) -> [Minute; MINUTES] {
        self.minutes_at(self.now())
    }

    fn now(&self) -> Duration {
        Clock::Boot.now().since(self.begun)
    }

    fn note_at(&self, now: Duration, count: impl FnOnce(&mut Minute)) {
        let mut kept = self.kept.lock();
        let at = kept.turn_to(now);
        count(&mut kept.minutes[at]);
    }

    fn minutes_at(&self, now: Duration) -> [Minute; MINUTES] {
        let mut kept = self.kept.lock();
        let at = kept.turn_to(now);
        let mut minutes = kept.minutes;
        minutes.rotate_left((at + 1) % MINUTES);
        minutes
    }
}

impl Kept {
    /// Clears the minutes that are older than an hour, and returns the index of the current one.
    fn turn_to(&mut self, now: Duration) -> usize {
        let minute = (now.as_secs() / 60).max(self.last);
        let passed = (minute - self.last).min(MINUTES as u64);
        for past in 0..passed {
            self.minutes[place(minute - past)] = Minute::default();
        }
        self.last = minute;
        place(minute)
    }
}

fn place(minute: u64) -> usize {
    // The remainder is below 60.
    (minute % MINUTES as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let hour = Hour::new();
        let at = Duration::from_secs;
        hour.note_at(at(0), |minute| minute.lost += 1);
        hour.note_at(at(61), |minute| minute.at_once += 2);
        let minutes = hour.minutes_at(at(119));
        assert_eq!((minutes[58].lost, minutes[59].at_once), (1, 2));
        let minutes = hour.minutes_at(at(59 * 60));
        assert_eq!((minutes[0].lost, minutes[1].at_once), (1, 2));
        let minutes = hour.minutes_at(at(60 * 60 + 5));
        assert_eq!((minutes[0].lost, minutes[0].at_once), (0, 2));
        // After a long time without events.
        hour.note_at(at(1_000_000), |minute| minute.waited += 1);
        let minutes = hour.minutes_at(at(1_000_000));
        let mut only = [Minute::default(); MINUTES];
        only[59].waited = 1;
        assert_eq!(minutes, only);
    }
}
