//! The claims with requests at this replica: which request of a claim may call the store now, which one is the newest, and
//! which waiters have not asked again.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Engine, LockName};
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};

use crate::access::Waiter;

const SHARDS: usize = 64;

/// All claims that this replica knows.
pub(crate) struct Known {
    engine: Arc<dyn Engine>,
    /// How long the store keeps a waiter after its last request.
    window: Duration,
    shards: Vec<Mutex<HashMap<ClaimId, Claim>>>,
    stamps: AtomicU64,
    left: Mutex<Left>,
}

struct Claim {
    /// When its first request came.
    since: BootInstant,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The stamp of the newest request.
    newest: watch::Sender<u64>,
    /// How many of its requests are here.
    visits: usize,
    /// The stamp of the last request, if the claim may wait in the queue and no request of it is here.
    left: Option<u64>,
    /// The lock for which this replica has placed it, while the outcome is open. Changed by the visit that has the turn.
    placed: Option<LockName>,
    /// Counts it as a waiter of its principal.
    waiter: Option<Waiter>,
    #[cfg(fencelock_planted)]
    wanted: Option<fencelock_core::engine::Claim>,
}

/// Claims that may be waiting and have no request here, in the order in which they will be forgotten.
#[derive(Default)]
struct Left {
    claims: VecDeque<(BootInstant, ClaimId, u64)>,
    /// Whether a task sweeps them.
    swept: bool,
}

impl Known {
    pub(crate) fn new(engine: Arc<dyn Engine>, window: Duration) -> Arc<Self> {
        Arc::new(Self {
            engine,
            window,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            stamps: AtomicU64::new(1),
            left: Mutex::default(),
        })
    }

    fn shard(&self, id: &ClaimId) -> &Mutex<HashMap<ClaimId, Claim>> {
        // The last byte differs between the claims of one client.
        &self.shards[usize::from(id.as_bytes()[15] ^ id.as_bytes()[0]) % SHARDS]
    }

    /// A request for a claim has come. It ends an open poll of the claim.
    pub(crate) fn enter(self: &Arc<Self>, id: ClaimId) -> Visit {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        let mut claims = self.shard(&id).lock();
        let claim = claims.entry(id).or_insert_with(|| Claim {
            since: self.engine.clock().now(),
            turn: Arc::default(),
            newest: watch::Sender::new(stamp),
            visits: 0,
            left: None,
            placed: None,
            waiter: None,
            #[cfg(fencelock_planted)]
            wanted: None,
        });
        claim.visits += 1;
        claim.left = None;
        claim.newest.send_replace(stamp);
        Visit {
            known: Arc::clone(self),
            id,
            stamp,
            since: claim.since,
            newest: claim.newest.subscribe(),
            turn: Arc::clone(&claim.turn),
            mine: None,
            may_wait: true,
        }
    }

    /// Whether this replica has placed the claim for another lock, and the outcome is open.
    pub(crate) fn is_for_another(&self, id: &ClaimId, name: &LockName) -> bool {
        let claims = self.shard(id).lock();
        let placed = claims.get(id).and_then(|claim| claim.placed.as_ref());
        placed.is_some_and(|placed| placed != name)
    }

    /// How many claims are known.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn leave(self: &Arc<Self>, visit: &Visit) {
        let mut claims = self.shard(&visit.id).lock();
        let Entry::Occupied(mut claim) = claims.entry(visit.id) else {
            return;
        };
        claim.get_mut().visits -= 1;
        if claim.get().visits > 0 {
            return;
        }
        if !visit.may_wait {
            claim.remove();
            return;
        }
        claim.get_mut().left = Some(visit.stamp);
        drop(claims);
        self.sweep_later(visit.id, visit.stamp);
    }

    fn sweep_later(self: &Arc<Self>, id: ClaimId, stamp: u64) {
        let until = self.engine.clock().now() + self.window;
        let mut left = self.left.lock();
        left.claims.push_back((until, id, stamp));
        // Without a runtime, the process is about to end: nothing needs to be swept.
        if let Ok(runtime) = Handle::try_current()
            && !std::mem::replace(&mut left.swept, true)
        {
            runtime.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Forgets the claims that are due, and returns when to look again.
    fn forget_due(&self) -> Option<BootInstant> {
        loop {
            let (id, stamp) = {
                let now = self.engine.clock().now();
                let mut left = self.left.lock();
                match left.claims.front() {
                    Some((until, ..)) if *until > now => return Some(*until),
                    Some(_) => {}
                    None => {
                        left.swept = false;
                        left.claims.shrink_to_fit();
                        return None;
                    }
                }
                let Some((_, id, stamp)) = left.claims.pop_front() else {
                    continue;
                };
                (id, stamp)
            };
            let mut claims = self.shard(&id).lock();
            if claims
                .get(&id)
                .is_some_and(|claim| claim.left == Some(stamp))
            {
                #[cfg(fencelock_planted)]
                let wanted = claims.get_mut(&id).and_then(|claim| claim.wanted.take());
                claims.remove(&id);
                // No request can come in between, since it would need this lock first.
                self.engine.forget(&id);
                #[cfg(fencelock_planted)]
                crate::planted::withdraw(&self.engine, wanted);
            }
        }
    }
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Known({} claims)", self.len())
    }
}

/// Forgets the waiters that do not ask again, until none is left.
async fn sweep(known: Weak<Known>) {
    loop {
        let Some(now) = known.upgrade() else { return };
        let Some(until) = now.forget_due() else {
            return;
        };
        let clock = now.engine.clock();
        drop(now);
        clock.sleep_until(until).await;
    }
}

/// A request that is here. Each call of the store about a claim belongs to a visit, which lasts as long as the call.
#[derive(Debug)]
pub(crate) struct Visit {
    known: Arc<Known>,
    id: ClaimId,
    stamp: u64,
    since: BootInstant,
    newest: watch::Receiver<u64>,
    turn: Arc<tokio::sync::Mutex<()>>,
    mine: Option<OwnedMutexGuard<()>>,
    may_wait: bool,
}

impl Visit {
    /// Whether this replica has placed the claim, and the outcome is open.
    pub(crate) fn is_placed(&self) -> bool {
        let claims = self.known.shard(&self.id).lock();
        claims
            .get(&self.id)
            .is_some_and(|claim| claim.placed.is_some())
    }

    /// Whether the claim counts as a waiter.
    pub(crate) fn is_counted(&self) -> bool {
        let claims = self.known.shard(&self.id).lock();
        claims
            .get(&self.id)
            .is_some_and(|claim| claim.waiter.is_some())
    }

    /// Notes that the claim is about to be placed. From now on it counts as a waiter, if there is one.
    pub(crate) fn placing(&self, name: &LockName, waiter: Option<Waiter>) {
        let mut claims = self.known.shard(&self.id).lock();
        if let Some(claim) = claims.get_mut(&self.id) {
            claim.placed = Some(name.clone());
            if waiter.is_some() {
                claim.waiter = waiter;
            }
        }
    }

    /// Keeps what the claim asks for, for a planted bug.
    #[cfg(fencelock_planted)]
    pub(crate) fn wants(&self, wanted: &fencelock_core::engine::Claim) {
        let mut claims = self.known.shard(&self.id).lock();
        if let Some(claim) = claims.get_mut(&self.id) {
            claim.wanted = Some(wanted.clone());
        }
    }

    /// When the first request of the claim came here, as far as that is known.
    pub(crate) fn since(&self) -> BootInstant {
        self.since
    }

    /// Waits for the turn: calls of one claim run one at a time.
    pub(crate) async fn take_turn(&mut self) {
        self.mine = Some(Arc::clone(&self.turn).lock_owned().await);
    }

    /// Returns once a newer request of the claim has come.
    pub(crate) async fn superseded(&mut self) {
        let stamp = self.stamp;
        // This cannot fail: the sender lives as long as a visit.
        let _ = self.newest.wait_for(|newest| *newest != stamp).await;
    }

    /// Whether a newer request of the claim has come.
    pub(crate) fn is_superseded(&self) -> bool {
        *self.newest.borrow() != self.stamp
    }

    /// Notes that the claim may wait in the queue, now or soon.
    pub(crate) fn may_wait(&mut self) {
        self.may_wait = true;
    }

    /// Notes that the claim certainly does not wait: it holds, or the store has nothing of it. A later request is a new one.
    pub(crate) fn waits_no_more(&mut self) {
        self.may_wait = false;
        let mut claims = self.known.shard(&self.id).lock();
        if let Some(claim) = claims.get_mut(&self.id) {
            claim.placed = None;
            claim.waiter = None;
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.mine = None;
        let known = Arc::clone(&self.known);
        known.leave(self);
    }
}
