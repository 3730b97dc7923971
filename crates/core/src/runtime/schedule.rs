//! When each hold of a client needs attention: its renewal is due, or its validity ends.
//!
//! One ordered set serves all holds. A renewal that hangs does not delay a loss: renewals run beside the task that reads
//! this schedule, and validity alone decides.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;

use super::hold::Hold;
use crate::engine::{HeldClaim, LeaseKind, Renewal};
use crate::support::Mutex;
use crate::types::{BootInstant, ClaimId, Clock, LossReason};

/// How many events without a hold are kept. Most are of claims that were released meanwhile.
const EARLY: usize = 64;

/// The schedule of a client.
#[derive(Debug)]
pub(crate) struct Schedule {
    clock: Clock,
    state: Mutex<State>,
    /// Notified when the earliest entry has moved forward.
    sooner: Notify,
    /// Until when the task sleeps, in nanoseconds; `u64::MAX` if nothing is due.
    sleeps_until: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<ClaimId, Entry, RandomState>,
    /// When to check a hold next: a renewal is due, or its validity ends.
    due: BTreeSet<(BootInstant, ClaimId)>,
    /// The claims of the last events that had no hold here: the answer with the grant may still be on its way.
    early: VecDeque<ClaimId>,
}

#[derive(Debug)]
struct Entry {
    hold: Arc<Hold>,
    due: BootInstant,
    /// Whether a renewal is under way. A release waits for its end.
    renewing: bool,
}

impl Schedule {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            sooner: Notify::new(),
            sleeps_until: AtomicU64::new(u64::MAX),
        }
    }

    /// Adds a hold, until [`Schedule::remove`]. Returns whether an event about its claim came before. It may be about an
    /// earlier grant of the claim, so the hold is then renewed at once: the answer tells.
    #[must_use]
    pub(crate) fn add(&self, hold: &Arc<Hold>, counted_from: BootInstant, lease: Duration) -> bool {
        let mut due = first_renewal(hold, counted_from, lease);
        let hold = Arc::clone(hold);
        let id = hold.claim.id;
        let mut state = self.state.lock();
        let early = state.early.iter().position(|early| *early == id);
        if let Some(place) = early {
            state.early.remove(place);
            due = self.clock.now();
        }
        state.due.insert((due, id));
        let renewing = false;
        let entry = Entry {
            hold,
            due,
            renewing,
        };
        state.holds.insert(id, entry);
        drop(state);
        self.wake_before(due);
        early.is_some()
    }

    fn wake_before(&self, due: BootInstant) {
        let due = due.as_nanos();
        if due < self.sleeps_until.fetch_min(due, Ordering::SeqCst) {
            self.sooner.notify_one();
        }
    }

    /// Removes a hold, and returns once no renewal of it is under way.
    pub(crate) async fn remove(&self, hold: &Hold) {
        hold.until(|hold| self.forget(hold.claim.id).then_some(()))
            .await;
    }

    /// Reserves the next renewal of a hold for the caller, once none is under way. `None` if the hold was removed. The caller
    /// then notes the outcome.
    pub(crate) async fn reserve(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<Renewing> {
        let reserved = hold.until(
            |hold| match self.state.lock().holds.get_mut(&hold.claim.id) {
                Some(entry) if entry.renewing => None,
                Some(entry) => {
                    entry.renewing = true;
                    Some(true)
                }
                None => Some(false),
            },
        );
        let reserved = reserved.await;
        reserved.then(|| self.renewing(vec![Arc::clone(hold)]))
    }

    /// The guard of renewals that were marked as under way.
    pub(crate) fn renewing(self: &Arc<Self>, holds: Vec<Arc<Hold>>) -> Renewing {
        let schedule = Arc::clone(self);
        Renewing { schedule, holds }
    }

    /// Removes a hold unless a renewal of it is under way.
    fn forget(&self, id: ClaimId) -> bool {
        let mut state = self.state.lock();
        match state.holds.get(&id) {
            Some(entry) if entry.renewing => false,
            Some(entry) => {
                let key = (entry.due, id);
                state.due.remove(&key);
                state.holds.remove(&id);
                true
            }
            None => true,
        }
    }

    /// All holds.
    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        let state = self.state.lock();
        state.holds.values().map(|e| Arc::clone(&e.hold)).collect()
    }

    /// The hold that an event is about. If there is none, the event is kept for [`Schedule::add`].
    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<Hold>> {
        let mut state = self.state.lock();
        let found = state.holds.get(&id).map(|entry| Arc::clone(&entry.hold));
        if found.is_none() {
            state.early.push_back(id);
            if state.early.len() > EARLY {
                state.early.pop_front();
            }
        }
        found
    }

    /// Returns when the earliest entry has moved forward.
    pub(crate) async fn moved_forward(&self) {
        self.sooner.notified().await;
    }

    /// The holds whose validity is over, those to renew, and when to check again.
    pub(crate) fn collect(&self) -> (Vec<Arc<Hold>>, Vec<Arc<Hold>>, Option<BootInstant>) {
        let now = self.clock.now();
        let (mut lost, mut renew) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        let State { holds, due, .. } = &mut *state;
        while let Some((at, id)) = due.first().copied() {
            let Some(entry) = holds.get_mut(&id) else {
                due.pop_first();
                continue;
            };
            let hold = &entry.hold;
            // Renewals that are due soon are sent now, so that many holds cost few wake-ups.
            let soon = now + early(hold, now);
            if at > soon {
                break;
            }
            let ends = hold.valid_until();
            let settled = !hold.renews || entry.renewing || hold.lost().is_some();
            if settled && at > now {
                // Only the end of its validity is due, and that is not handled early.
                break;
            }
            due.pop_first();
            if hold.lost().is_some() {
                continue;
            }
            if now >= ends {
                lost.push(Arc::clone(hold));
                continue;
            }
            if hold.renews && !entry.renewing {
                entry.renewing = true;
                renew.push(Arc::clone(hold));
            }
            entry.due = ends;
            due.insert((ends, id));
        }
        let next = due.first().map(|(at, _)| *at);
        // When idle, keep the last deadline: one spurious wake-up is cheaper than one per short hold.
        let before = BootInstant::from_nanos(self.sleeps_until.load(Ordering::SeqCst));
        let never = BootInstant::from_nanos(u64::MAX);
        let next = next.or((now < before && before < never).then_some(before));
        let until = next.unwrap_or(never);
        self.sleeps_until.store(until.as_nanos(), Ordering::SeqCst);
        (lost, renew, next)
    }

    /// Notes the outcome of a renewal. Returns the reason if the hold is lost by it; the caller must report that.
    #[must_use]
    pub(crate) fn note(
        &self,
        hold: &Hold,
        renewal: &Renewal,
        held: &HeldClaim,
    ) -> Option<LossReason> {
        let now = self.clock.now();
        hold.note_asked(held.claim.ttl);
        let (due, lost) = match renewal {
            Renewal::Kept {
                counted_from,
                lease,
                asked,
            } => {
                let lease = hold.sure_of(*lease);
                if hold.prolong(*counted_from, lease) {
                    hold.record(held.token);
                    if *asked {
                        hold.ask();
                    }
                }
                (first_renewal(hold, *counted_from, lease), None)
            }
            Renewal::Lost => (now, Some(LossReason::StoreForgot)),
            Renewal::Ended(kind) => (now, Some(end_of(*kind))),
            Renewal::Unknown(error) => {
                if held.shorten {
                    hold.doubt(held.claim.ttl);
                }
                if hold.renews {
                    tracing::warn!(name = %hold.claim.name, %error, "a renewal failed; trying again");
                    (now + pause(hold), None)
                } else {
                    (hold.valid_until(), None)
                }
            }
        };
        self.renew_next(hold, due);
        if lost.is_none() {
            self.wake_before(due.min(hold.valid_until()));
        }
        hold.news.notify_waiters();
        lost
    }

    /// Notes that a request is about to be sent that may shorten the lease to `lease`: validity beyond that ends now.
    pub(crate) fn curtail(&self, hold: &Hold, lease: Duration) {
        if !hold.curtail(lease) {
            return;
        }
        let ends = hold.valid_until();
        let id = hold.claim.id;
        self.state
            .lock()
            .reschedule(id, |entry| entry.due.min(ends));
        self.wake_before(ends);
    }

    /// Ends a renewal that had no outcome, or was not begun.
    pub(crate) fn put_off(&self, hold: &Hold) {
        let due = self.clock.now() + pause(hold);
        self.renew_next(hold, due);
        self.wake_before(due);
        hold.news.notify_waiters();
    }

    /// Ends a renewal, and says when the next one is due.
    fn renew_next(&self, hold: &Hold, due: BootInstant) {
        self.state.lock().reschedule(hold.claim.id, |entry| {
            entry.renewing = false;
            due.min(hold.valid_until())
        });
    }
}

/// Renewals under way. A task may be dropped without noting their outcome, as when its runtime ends. Then a release must not
/// wait for them forever.
pub(crate) struct Renewing {
    schedule: Arc<Schedule>,
    pub(crate) holds: Vec<Arc<Hold>>,
}

impl Renewing {
    /// Called when the outcome of each was noted.
    pub(crate) fn noted(mut self) {
        self.holds.clear();
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for hold in &self.holds {
            self.schedule.put_off(hold);
        }
    }
}

impl State {
    /// Sets when to check a hold, if it is in the schedule.
    fn reschedule(&mut self, id: ClaimId, when: impl FnOnce(&mut Entry) -> BootInstant) {
        let Self { holds, due, .. } = self;
        if let Some(entry) = holds.get_mut(&id) {
            due.remove(&(entry.due, id));
            entry.due = when(entry);
            due.insert((entry.due, id));
        }
    }
}

/// Why a hold was lost, by the thing on which it depended.
pub(crate) const fn end_of(kind: LeaseKind) -> LossReason {
    match kind {
        LeaseKind::Lease => LossReason::StoreForgot,
        LeaseKind::Session => LossReason::SessionEnded,
        LeaseKind::Connection => LossReason::ConnectionEnded,
    }
}

/// The pause until the next attempt to renew: within the validity, but not too soon.
fn pause(hold: &Hold) -> Duration {
    let pause = (hold.remaining() / 4).min(hold.claim.ttl / 10);
    pause.max(Duration::from_millis(10))
}

/// How much earlier than due a renewal may be sent together with others: a small part of its remaining lease.
fn early(hold: &Hold, now: BootInstant) -> Duration {
    hold.claim.ttl.min(hold.valid_until().since(now)) / 30
}

/// When the first renewal is due: after a third of the lease. Without renewals, the end of validity.
fn first_renewal(hold: &Hold, counted_from: BootInstant, lease: Duration) -> BootInstant {
    let ends = hold.valid_until();
    if hold.renews {
        ends.min(counted_from + hold.renewed_after(lease))
    } else {
        ends
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::{Claim, Grant};
    use crate::runtime::hold::Terms;
    use crate::types::{LockName, Token, Tokens};

    const TTL: Duration = Duration::from_secs(30);

    /// Holds for a moment only.
    fn hold_shortly(schedule: &Schedule, number: u8) {
        let id = ClaimId::from_bytes([number; 16]);
        let claim = Claim::new(id, "somebody", LockName::new("a").unwrap());
        let grant = Grant::new(
            Tokens::one(Token(u64::from(number))),
            schedule.clock.now(),
            TTL,
        );
        let terms = Terms {
            renews: true,
            max_hold: None,
            at_least: None,
            healthy: None,
        };
        let hold = Arc::new(Hold::new(claim, &grant, schedule.clock, terms));
        let early = schedule.add(&hold, grant.counted_from, TTL);
        assert!(!early);
        assert!(schedule.forget(hold.claim.id));
    }

    async fn is_woken(schedule: &Schedule) -> bool {
        tokio::select! {
            biased;
            () = schedule.sooner.notified() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_of_many_short_holds_wakes_the_schedule() {
        let schedule = Schedule::new(Clock::Tokio(tokio::time::Instant::now()));
        for round in 0..2 {
            hold_shortly(&schedule, 10 * round);
            assert!(is_woken(&schedule).await);
            // It wakes only to find that the hold is over.
            let next = schedule.collect().2.unwrap();
            assert!(next > schedule.clock.now());
            for number in 1..10 {
                tokio::time::advance(Duration::from_millis(1)).await;
                hold_shortly(&schedule, 10 * round + number);
                assert!(!is_woken(&schedule).await);
            }
            tokio::time::advance(TTL / 3).await;
            assert_eq!(schedule.collect().2, None, "it sleeps until it is woken");
        }
    }
}
