//! The keeper of a client: renews all its holds in batches, and tells a holder in time when its grant is lost.
//!
//! One task and one ordered set serve all holds. A renewal that hangs does not delay a loss: batches run beside the
//! task, which goes by validity alone.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tracing::Instrument;

use crate::client::Inner;
use crate::engine::LeaseKind;
use crate::engine::{Event, HeldClaim, Renewal};
use crate::guard;
use crate::hold::Hold;
use crate::types::{BootInstant, Clock};
use crate::types::{ClaimId, LossReason};

/// How many claims go into one call of [`Engine::renew`](crate::Engine::renew).
const BATCH: usize = 1000;

/// What the keeper knows. The task is [`run`].
#[derive(Debug)]
pub(crate) struct Keeper {
    clock: Clock,
    state: Mutex<State>,
    /// The earliest entry moved forward.
    sooner: Notify,
    /// Until when the task sleeps at most, in nanoseconds; `u64::MAX` if nothing is to come.
    sleeps_until: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    holds: HashMap<ClaimId, Entry, RandomState>,
    /// When to look at a hold next: a renewal is due, or validity ends.
    due: BTreeSet<(BootInstant, ClaimId)>,
}

#[derive(Debug)]
struct Entry {
    hold: Arc<Hold>,
    due: BootInstant,
    /// A renewal is under way; release waits for its end.
    renewing: bool,
}

impl Keeper {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            state: Mutex::default(),
            sooner: Notify::new(),
            sleeps_until: AtomicU64::new(u64::MAX),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a hold into keeping, until [`Keeper::let_go`].
    pub(crate) fn keep(&self, hold: &Arc<Hold>, counted_from: BootInstant, lease: Duration) {
        let due = first_renewal(hold, counted_from, lease);
        let hold = Arc::clone(hold);
        let id = hold.claim.id;
        let mut state = self.state();
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
    }

    fn wake_before(&self, due: BootInstant) {
        let due = due.as_nanos();
        if due < self.sleeps_until.fetch_min(due, Ordering::SeqCst) {
            self.sooner.notify_one();
        }
    }

    /// Ends keeping, and returns once no renewal of the hold is under way.
    pub(crate) async fn let_go(&self, hold: &Hold) {
        hold.until(|hold| self.forget(hold.claim.id).then_some(()))
            .await;
    }

    /// Reserves the next renewal of a hold for the caller, once none is under way. `None` if it is not kept any more. The
    /// caller then notes what came of it.
    pub(crate) async fn reserve(self: &Arc<Self>, hold: &Arc<Hold>) -> Option<Renewing> {
        let reserved = hold.until(|hold| match self.state().holds.get_mut(&hold.claim.id) {
            Some(entry) if entry.renewing => None,
            Some(entry) => {
                entry.renewing = true;
                Some(true)
            }
            None => Some(false),
        });
        let reserved = reserved.await;
        reserved.then(|| self.renewing(vec![Arc::clone(hold)]))
    }

    /// Renewals that were marked as under way.
    fn renewing(self: &Arc<Self>, holds: Vec<Arc<Hold>>) -> Renewing {
        let keeper = Arc::clone(self);
        Renewing { keeper, holds }
    }

    /// Ends keeping unless a renewal is under way.
    fn forget(&self, id: ClaimId) -> bool {
        let mut state = self.state();
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

    /// Every hold there is.
    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        let state = self.state();
        state.holds.values().map(|e| Arc::clone(&e.hold)).collect()
    }

    /// The store said something about a claim.
    pub(crate) fn tell(&self, inner: &Arc<Inner>, event: Event) {
        let find = |id| self.state().holds.get(&id).map(|e| Arc::clone(&e.hold));
        match event {
            Event::Lost(id) => {
                if let Some(hold) = find(id) {
                    inner.lose(&hold, LossReason::TakenAway);
                }
            }
            Event::Asked(id) => {
                if let Some(hold) = find(id) {
                    hold.ask();
                }
            }
        }
    }

    /// Splits what is due now into the lost and those to renew, and says when to look again.
    fn collect(&self) -> (Vec<Arc<Hold>>, Vec<Arc<Hold>>, Option<BootInstant>) {
        let now = self.clock.now();
        let (mut lost, mut renew) = (Vec::new(), Vec::new());
        let mut state = self.state();
        let State { holds, due } = &mut *state;
        while let Some((at, id)) = due.first().copied() {
            let Some(entry) = holds.get_mut(&id) else {
                due.pop_first();
                continue;
            };
            let hold = &entry.hold;
            // What is due soon goes along, so that many holds cost few wake-ups.
            let soon = now + along(hold, now);
            if at > soon {
                break;
            }
            let ends = hold.valid_until();
            let settled = !hold.renews || entry.renewing || hold.lost().is_some();
            if settled && at > now {
                // Nothing but the end of validity is awaited, and that is not to be hurried.
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
        // With nothing held it keeps to its last appointment, in vain, lest each of many short holds wake it.
        let before = BootInstant::from_nanos(self.sleeps_until.load(Ordering::SeqCst));
        let never = BootInstant::from_nanos(u64::MAX);
        let next = next.or((now < before && before < never).then_some(before));
        let until = next.unwrap_or(never);
        self.sleeps_until.store(until.as_nanos(), Ordering::SeqCst);
        (lost, renew, next)
    }

    /// Notes what came of a renewal.
    pub(crate) fn note(
        &self,
        inner: &Arc<Inner>,
        hold: &Arc<Hold>,
        renewal: &Renewal,
        held: &HeldClaim,
    ) {
        let now = self.clock.now();
        hold.note_asked(held.claim.ttl);
        if let Renewal::Unknown(_) = renewal {
            hold.doubt(held.claim.ttl);
        }
        let mut why = None;
        let due = match renewal {
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
                first_renewal(hold, *counted_from, lease)
            }
            Renewal::Lost => {
                why = Some(LossReason::StoreForgot);
                now
            }
            Renewal::Unknown(_) if !hold.renews => hold.valid_until(),
            Renewal::Unknown(error) => {
                tracing::warn!(name = %hold.claim.name, %error, "a renewal failed; trying again");
                now + pause(hold)
            }
        };
        self.renew_next(hold, due);
        match why {
            Some(why) => inner.lose(hold, why),
            None => self.wake_before(due.min(hold.valid_until())),
        }
        hold.news.notify_waiters();
    }

    /// A renewal for so long is about to go out: what is believed beyond that ends with it.
    pub(crate) fn curtail(&self, hold: &Hold, lease: Duration) {
        if !hold.curtail(lease) {
            return;
        }
        let ends = hold.valid_until();
        let id = hold.claim.id;
        self.state().reschedule(id, |entry| entry.due.min(ends));
        self.wake_before(ends);
    }

    /// Ends a renewal that brought nothing, or was not begun.
    pub(crate) fn put_off(&self, hold: &Hold) {
        let due = self.clock.now() + pause(hold);
        self.renew_next(hold, due);
        self.wake_before(due);
        hold.news.notify_waiters();
    }

    /// Ends a renewal, and says when the next one is due.
    fn renew_next(&self, hold: &Hold, due: BootInstant) {
        self.state().reschedule(hold.claim.id, |entry| {
            entry.renewing = false;
            due.min(hold.valid_until())
        });
    }
}

/// Renewals under way. A task that goes away without noting what came of them, as all do when their runtime ends, must not
/// leave a release waiting for them.
pub(crate) struct Renewing {
    keeper: Arc<Keeper>,
    holds: Vec<Arc<Hold>>,
}

impl Renewing {
    /// What came of every one was noted.
    pub(crate) fn noted(mut self) {
        self.holds.clear();
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        for hold in &self.holds {
            self.keeper.put_off(hold);
        }
    }
}

impl State {
    /// Sets anew when to look at a hold, if it is kept.
    fn reschedule(&mut self, id: ClaimId, when: impl FnOnce(&mut Entry) -> BootInstant) {
        let Self { holds, due } = self;
        if let Some(entry) = holds.get_mut(&id) {
            due.remove(&(entry.due, id));
            entry.due = when(entry);
            due.insert((entry.due, id));
        }
    }
}

/// Until the next attempt to renew: within validity, but not in a rush.
fn pause(hold: &Hold) -> Duration {
    let pause = (hold.remaining() / 4).min(hold.claim.ttl / 10);
    pause.max(Duration::from_millis(10))
}

/// How much earlier than due a renewal may go along with others: little against what is left of its lease.
fn along(hold: &Hold, now: BootInstant) -> Duration {
    hold.claim.ttl.min(hold.valid_until().since(now)) / 30
}

/// A third into the lease, or the end of validity if it is not renewed.
fn first_renewal(hold: &Hold, counted_from: BootInstant, lease: Duration) -> BootInstant {
    let ends = hold.valid_until();
    if hold.renews {
        ends.min(counted_from + lease / 3)
    } else {
        ends
    }
}

/// The keeper's task: ends when the client is gone.
pub(crate) async fn run(client: Weak<Inner>, clock: Clock) {
    loop {
        let Some(inner) = client.upgrade() else {
            return;
        };
        let (lost, renew, next) = inner.keeper.collect();
        for hold in lost {
            end(&inner, &hold);
        }
        let (renew, ailing): (Vec<_>, Vec<_>) = renew.into_iter().partition(|h| h.is_healthy());
        for hold in &ailing {
            tracing::warn!(name = %hold.claim.name, "not renewed: its holder is not healthy");
            inner.keeper.put_off(hold);
        }
        for batch in renew.chunks(BATCH) {
            let span = tracing::debug_span!("renew", holds = batch.len());
            let batch = inner.keeper.renewing(batch.to_vec());
            inner.behind(|inner| async move { renew_batch(&inner, batch).await }.instrument(span));
        }
        // The client may go while its keeper sleeps: hold on to the keeper alone.
        let keeper = Arc::clone(&inner.keeper);
        drop(inner);
        match next {
            Some(next) => tokio::select! {
                () = clock.sleep_until(next) => {}
                () = keeper.sooner.notified() => {}
            },
            None => keeper.sooner.notified().await,
        }
    }
}

/// The validity of a hold is over: its guards are told. Whoever sees that first says so.
pub(crate) fn end(inner: &Arc<Inner>, hold: &Arc<Hold>) {
    let (why, ours) = hold.why_over();
    inner.lose(hold, why);
    let unnoticed = !hold.renews && inner.promises.lease != LeaseKind::Lease;
    if (ours || unnoticed) && !hold.joined {
        // Its holder may be stuck, and the store need not find out by itself.
        let hold = Arc::clone(hold);
        inner.behind(|inner| guard::abandon(inner, hold));
    }
}

async fn renew_batch(inner: &Arc<Inner>, batch: Renewing) {
    let holds = &batch.holds;
    let held: Vec<_> = holds.iter().map(|hold| hold.held_claim()).collect();
    for (hold, held) in holds.iter().zip(&held) {
        inner.keeper.curtail(hold, held.claim.ttl);
    }
    let renewals = inner.engine.renew(&held).await;
    let (mut kept, mut lost, mut unknown) = (0, 0, 0);
    for ((hold, held), renewal) in holds.iter().zip(&held).zip(&renewals) {
        match renewal {
            Renewal::Kept { .. } => kept += 1,
            Renewal::Lost => lost += 1,
            Renewal::Unknown(_) => unknown += 1,
        }
        inner.keeper.note(inner, hold, renewal, held);
    }
    batch.noted();
    inner.observe(|observer| observer.renewed(kept, lost, unknown));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::{Claim, Grant};
    use crate::hold::Terms;
    use crate::types::LockName;
    use crate::types::Mode;
    use crate::types::{Token, Tokens};

    const TTL: Duration = Duration::from_secs(30);

    /// Held no longer than it takes.
    fn hold_shortly(keeper: &Keeper, number: u8) {
        let claim = Claim {
            id: ClaimId::from_bytes([number; 16]),
            owner: "somebody".into(),
            name: LockName::new("a").unwrap(),
            mode: Mode::Exclusive,
            ttl: TTL,
            lock_delay: Duration::ZERO,
            wait: true,
            reserve: 1,
            record: false,
            label: None,
        };
        let grant = Grant {
            tokens: Tokens::one(Token(u64::from(number))),
            counted_from: keeper.clock.now(),
            lease: TTL,
            recorded: true,
        };
        let terms = Terms {
            renews: true,
            max_hold: None,
            healthy: None,
        };
        let hold = Arc::new(Hold::new(claim, &grant, keeper.clock, terms));
        keeper.keep(&hold, grant.counted_from, TTL);
        assert!(keeper.forget(hold.claim.id));
    }

    async fn is_woken(keeper: &Keeper) -> bool {
        tokio::select! {
            biased;
            () = keeper.sooner.notified() => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_of_many_short_holds_wakes_the_keeper() {
        let keeper = Keeper::new(Clock::Tokio(tokio::time::Instant::now()));
        for round in 0..2 {
            hold_shortly(&keeper, 10 * round);
            assert!(is_woken(&keeper).await);
            // Only to find that it is over.
            let next = keeper.collect().2.unwrap();
            assert!(next > keeper.clock.now());
            for number in 1..10 {
                tokio::time::advance(Duration::from_millis(1)).await;
                hold_shortly(&keeper, 10 * round + number);
                assert!(!is_woken(&keeper).await);
            }
            tokio::time::advance(TTL / 3).await;
            assert_eq!(keeper.collect().2, None, "it sleeps until it is woken");
        }
    }
}
