//! The state of a [`Breaker`](super::Breaker): whether a request may be sent to a store that does not answer.

use std::collections::HashSet;
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::engine::{StoreChange, StoreListener};
use crate::support::{Mutex, jitter};
use crate::types::{BootInstant, ClaimId, Clock, Error, in_words};

/// This many failures in a row open it.
const FAILURES: u32 = 5;

/// This time without an answer opens it.
const SILENCE: Duration = Duration::from_secs(2);

/// The first and the longest pause between two probes.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));

/// Retries are counted over this many seconds.
const WINDOW: usize = 10;

/// In the window there may be one retry for this many calls that succeeded.
const CALLS_A_RETRY: u32 = 10;

/// Counts the answers of a store, and decides whether requests go through. There is one for each client and store.
#[derive(Debug)]
pub(crate) struct Gate {
    clock: Clock,
    /// The label of the store.
    store: &'static str,
    state: Mutex<State>,
    listener: OnceLock<StoreListener>,
    /// Whether the store is away, as the listener was told last. Locked while it is told, so that the last word is true.
    told_away: Mutex<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// The failures since the last answer.
    failures: u32,
    /// How many calls are waiting for an answer that should come soon.
    in_flight: u32,
    /// Since when there have been such calls without a break and without an answer.
    asking_since: Option<BootInstant>,
    /// The first call since the last answer.
    silent_since: Option<BootInstant>,
    open: Option<Open>,
    /// Claims whose last request had no answer. Each is placed again or withdrawn.
    failed: HashSet<ClaimId>,
    retries: Recent,
    successes: Recent,
    last_retry: Option<BootInstant>,
}

#[derive(Debug)]
struct Open {
    since: BootInstant,
    pause: Duration,
    next: BootInstant,
    /// Whether a probe is under way.
    probing: bool,
}

/// A store to which no requests are sent now. [`Breaker::away`](super::Breaker::away) returns it.
///
/// ```
/// # use fencelock_core::layers::Breaker;
/// fn banner(breaker: &Breaker) -> Option<String> {
///     let away = breaker.away()?;
///     Some(format!("no answer for {:?}, asked again in {:?}", away.silent, away.again))
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Away {
    /// How long it has not answered.
    pub silent: Duration,
    /// The time until the next probe; zero while a probe is under way.
    pub again: Duration,
}

/// Why a request was not sent.
#[derive(Debug)]
pub(crate) enum NotAsked {
    Away(Away),
    /// Too many requests are retries.
    Budget,
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(Away { silent, again }) => {
                let silent = in_words(*silent);
                write!(f, "not sent, because it has not answered for {silent}; ")?;
                match again.is_zero() {
                    true => f.write_str("another request asks it now"),
                    false => write!(f, "next attempt in {}", in_words(*again)),
                }
            }
            Self::Budget => f.write_str(
                "not sent, because more than a tenth of the requests repeat one without an answer; next attempt later",
            ),
        }
    }
}

impl std::error::Error for NotAsked {}

/// Whether a request was not sent, so that nothing of it can take effect.
pub(crate) fn was_not_asked(error: &Error) -> bool {
    matches!(error, Error::Unavailable { cause, .. } if cause.is::<NotAsked>())
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Answered,
    NoAnswer,
    /// No information: the caller no longer waits.
    Dropped,
}

impl Gate {
    pub(crate) fn new(clock: Clock, store: &'static str) -> Self {
        Self {
            clock,
            store,
            state: Mutex::default(),
            listener: OnceLock::new(),
            told_away: Mutex::default(),
        }
    }

    pub(crate) fn listen(&self, listener: StoreListener) {
        // The first one stays.
        let _ = self.listener.set(listener);
    }

    /// Changes the state. Then, if it has opened or closed, tells the listener, outside the lock.
    fn change<T>(&self, change: impl FnOnce(&mut State, BootInstant) -> T) -> T {
        let now = self.clock.now();
        let (result, changed) = {
            let mut state = self.state.lock();
            let was_open = state.open.is_some();
            let result = change(&mut state, now);
            (result, was_open != state.open.is_some())
        };
        if changed {
            self.tell();
        }
        result
    }

    /// Tells the listener if the store is away or back.
    fn tell(&self) {
        let Some(listener) = self.listener.get() else {
            return;
        };
        let mut told_away = self.told_away.lock();
        let is_away = self.state.lock().open.is_some();
        if *told_away != is_away {
            *told_away = is_away;
            let change = match is_away {
                true => StoreChange::Away,
                false => StoreChange::Back,
            };
            listener.tell(self.store, change);
        }
    }

    /// How long the store has been away; `None` while requests go through.
    pub(crate) fn away(&self) -> Option<Away> {
        let state = self.state.lock();
        let now = self.clock.now();
        state.open.as_ref().map(|open| state.away(open, now))
    }

    /// Whether a claim may be placed. If so, `Call::end` must be called.
    pub(crate) fn enter(&self, claim: &ClaimId) -> Result<Call<'_>, NotAsked> {
        let probe = self.change(|state, now| state.enter(claim, now))?;
        Ok(self.call(Some(*claim), probe))
    }

    /// Begins a call that always goes through, and whose answer counts.
    pub(crate) fn pass(&self) -> Call<'_> {
        self.state.lock().begin(self.clock.now());
        self.call(None, false)
    }

    fn call(&self, claim: Option<ClaimId>, probe: bool) -> Call<'_> {
        Call {
            gate: self,
            claim,
            probe,
            outcome: Outcome::Dropped,
        }
    }

    /// Notes the end of a call that may take long. Only the end counts.
    pub(crate) fn note(&self, outcome: Outcome) {
        self.change(|state, now| match outcome {
            Outcome::Answered => state.answered(now),
            Outcome::NoAnswer => state.failed_at(now),
            Outcome::Dropped => {}
        });
    }

    /// Notes that no more requests are sent for this claim.
    pub(crate) fn forget(&self, claim: &ClaimId) {
        self.state.lock().forget(claim);
    }
}

impl State {
    fn away(&self, open: &Open, now: BootInstant) -> Away {
        let again = match open.probing {
            true => Duration::ZERO,
            // If a probe is due, the next request is sent.
            false => open.next.since(now).max(Duration::from_millis(1)),
        };
        let silent = now.since(self.silent_since.unwrap_or(open.since));
        Away { silent, again }
    }

    /// While all is well the set is empty, and its hash is saved.
    fn forget(&mut self, claim: &ClaimId) {
        if !self.failed.is_empty() {
            self.failed.remove(claim);
        }
    }

    /// Begins a call that places a claim, if it may. Returns whether it is a probe.
    fn enter(&mut self, claim: &ClaimId, now: BootInstant) -> Result<bool, NotAsked> {
        let silent = |since| now.since(since) >= SILENCE;
        if self.asking_since.is_some_and(silent) {
            self.trip(now);
        }
        let retry = self.failed.contains(claim);
        let probe = match &mut self.open {
            None => false,
            Some(open) if open.probing || now < open.next => {
                let away = self.open.as_ref().map(|open| self.away(open, now));
                return Err(away.map_or(NotAsked::Budget, NotAsked::Away));
            }
            Some(open) => {
                open.probing = true;
                true
            }
        };
        if retry && !probe && !self.may_retry(now) {
            // The claim waits for its longest pause, and then goes through.
            self.failed.remove(claim);
            return Err(NotAsked::Budget);
        }
        self.begin(now);
        Ok(probe)
    }

    fn begin(&mut self, now: BootInstant) {
        self.in_flight += 1;
        self.asking_since.get_or_insert(now);
        self.silent_since.get_or_insert(now);
    }

    fn answered(&mut self, now: BootInstant) {
        self.failures = 0;
        self.open = None;
        self.asking_since = (self.in_flight > 0).then_some(now);
        self.silent_since = self.asking_since;
    }

    /// Notes the end of a call.
    fn ended(&mut self, call: &Call<'_>, now: BootInstant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match call.outcome {
            Outcome::Answered => {
                self.successes.add(now);
                self.answered(now);
                if let Some(claim) = &call.claim {
                    self.forget(claim);
                }
            }
            Outcome::NoAnswer => {
                self.failed_at(now);
                self.failed.extend(call.claim);
            }
            Outcome::Dropped => {}
        }
        if self.in_flight == 0 {
            self.asking_since = None;
        }
        if call.probe
            && let Some(open) = &mut self.open
        {
            open.probing = false;
            if call.outcome == Outcome::NoAnswer {
                open.pause = (open.pause * 2).min(PAUSES.1);
            }
            open.next = now + jitter(open.pause);
        }
    }

    fn failed_at(&mut self, now: BootInstant) {
        self.failures += 1;
        let since = *self.silent_since.get_or_insert(now);
        if self.failures >= FAILURES || now.since(since) >= SILENCE {
            self.trip(now);
        }
    }

    fn trip(&mut self, now: BootInstant) {
        if self.open.is_none() {
            self.open = Some(Open {
                since: now,
                pause: PAUSES.0,
                next: now + jitter(PAUSES.0),
                probing: false,
            });
        }
    }

    fn may_retry(&mut self, now: BootInstant) -> bool {
        let rested = self
            .last_retry
            .is_none_or(|last| now.since(last) >= Duration::from_secs(1));
        let may = rested || self.retries.count(now) < self.successes.count(now) / CALLS_A_RETRY;
        if may {
            self.retries.add(now);
            self.last_retry = Some(now);
        }
        may
    }
}

/// A call under way. A dropped one counts as ended.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    gate: &'a Gate,
    claim: Option<ClaimId>,
    probe: bool,
    outcome: Outcome,
}

impl Call<'_> {
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.gate.change(|state, now| state.ended(self, now));
    }
}

/// How many events there were in the last seconds.
#[derive(Debug, Default)]
struct Recent {
    counts: [u32; WINDOW],
    /// The second of the newest count.
    second: u64,
}

impl Recent {
    fn turn(&mut self, now: BootInstant) -> usize {
        let second = now.as_nanos() / 1_000_000_000;
        let passed = second.saturating_sub(self.second).min(WINDOW as u64);
        for past in 0..passed {
            let at = (second - past) as usize % WINDOW;
            self.counts[at] = 0;
        }
        self.second = self.second.max(second);
        self.second as usize % WINDOW
    }

    fn add(&mut self, now: BootInstant) {
        let at = self.turn(now);
        self.counts[at] = self.counts[at].saturating_add(1);
    }

    fn count(&mut self, now: BootInstant) -> u32 {
        self.turn(now);
        self.counts
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_older_than_the_window_are_dropped() {
        let at = |second: u64| BootInstant::from_nanos(second * 1_000_000_000);
        let mut recent = Recent::default();
        for second in 100..110 {
            recent.add(at(second));
        }
        assert_eq!(recent.count(at(109)), 10);
        assert_eq!(recent.count(at(112)), 7);
        recent.add(at(112));
        assert_eq!(recent.count(at(112)), 8);
        assert_eq!(recent.count(at(500)), 0);
    }
}
