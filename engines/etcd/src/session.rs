//! Sessions: leases to which the keys of many claims are attached, kept alive for all of them at once.
//!
//! A session has one length of lease, and room for a number of keys. When it is full, the client begins another one of the same
//! length. Waiting claims are in the *waiting session*, whose lease is the claim window, so that dead waiters leave the queue
//! soon. The first renewal of a hold moves it into the session of its own ttl. A claim whose token other processes read has a
//! session of its own, which only its own renewals prolong: a child process may rely on it.
//!
//! If a request had no answer and may still take effect in a session, the client *retires* the session. No new claim enters it,
//! and the client deletes keys that belong to no claim. It revokes the session as soon as that is empty. After that the request
//! can only fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::support::Mutex;
use fencelock_core::{BootInstant, ClaimId, Clock, Tokens};
use tokio::sync::Notify;

use crate::single_flight::SingleFlight;

/// How long an unused session is kept for the next claim.
const IDLE: Duration = Duration::from_secs(30);

/// How many bytes of keys fit in a session. The server lists them all in one response, and the driver accepts at most 4 MiB.
const CAPACITY: usize = 3 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    /// The length of its lease.
    seconds: u64,
    /// The only claim that may enter it, if there is one.
    only: Option<ClaimId>,
}

/// A lease, and the holds that depend on it.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lease: i64,
    /// How long the server keeps the lease without renewal.
    pub(crate) ttl: Duration,
    class: Class,
    pub(crate) status: Mutex<Status>,
    /// The total length, in bytes, of the keys of the claims that keep the session alive.
    pinned: AtomicUsize,
    /// Held during a check: one at a time.
    pub(crate) checking: tokio::sync::Mutex<()>,
    changed: Notify,
}

#[derive(Debug)]
pub(crate) struct Status {
    /// When the last request was sent that prolonged the lease.
    pub(crate) confirmed: BootInstant,
    /// When the last check was sent that also confirmed the keys of all holds.
    pub(crate) audited: BootInstant,
    /// When the session was last needed.
    used: BootInstant,
    ended: bool,
    pub(crate) retired: bool,
    /// A request of unknown outcome may put a key in the session.
    pub(crate) in_doubt: bool,
    /// The session is being revoked: its holds are no longer valid.
    revoked: bool,
    /// The connection over which keys without a claim were last looked for.
    pub(crate) swept: u64,
    pub(crate) holds: HashMap<ClaimId, Hold>,
}

#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) key: Vec<u8>,
    pub(crate) revision: i64,
    pub(crate) since: BootInstant,
    /// When the hold ends unless it is renewed.
    pub(crate) until: BootInstant,
}

/// How a claim comes to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Holding {
    /// It did not hold.
    New,
    /// It holds already. A hold that has ended is never taken up again: its key may be deleted at any moment.
    Again { shorten: bool },
}

/// Keeps a session alive for a claim that is in it or may enter it.
#[derive(Debug)]
pub(crate) struct Pin {
    pub(crate) session: Arc<Session>,
    /// The length of the claim's key.
    bytes: usize,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let before = self.session.pinned.fetch_sub(self.bytes, Ordering::SeqCst);
        if before == self.bytes {
            self.session.notify_if_done();
        }
    }
}

impl Class {
    /// The session for a hold of this claim.
    pub(crate) fn for_hold(claim: &Claim, own: bool) -> Self {
        // A third more, so that a grant has its whole ttl even if the session was prolonged some time ago.
        let lease = claim.ttl.saturating_add(claim.ttl / 3);
        Self {
            seconds: whole_seconds(lease.saturating_add(claim.lock_delay)),
            only: own.then_some(claim.id),
        }
    }

    pub(crate) fn for_waiting(claim_window: Duration) -> Self {
        Self {
            seconds: whole_seconds(claim_window),
            only: None,
        }
    }

    pub(crate) fn is_for_one(self) -> bool {
        self.only.is_some()
    }

    pub(crate) fn lease_seconds(self) -> i64 {
        i64::try_from(self.seconds).unwrap_or(i64::MAX)
    }
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

impl Session {
    /// A session whose lease was granted by a request sent at `confirmed` over this connection.
    pub(crate) fn new(
        class: Class,
        (lease, ttl): (i64, Duration),
        confirmed: BootInstant,
        connection: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            lease,
            ttl,
            class,
            status: Mutex::new(Status {
                confirmed,
                audited: confirmed,
                used: confirmed,
                ended: false,
                retired: false,
                in_doubt: false,
                revoked: false,
                swept: connection,
                holds: HashMap::new(),
            }),
            pinned: AtomicUsize::new(0),
            checking: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        })
    }

    pub(crate) fn pin(self: &Arc<Self>, bytes: usize) -> Arc<Pin> {
        self.pinned.fetch_add(bytes, Ordering::SeqCst);
        self.status.lock().used = Clock::Boot.now();
        let session = Arc::clone(self);
        Arc::new(Pin { session, bytes })
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.status.lock().ended
    }

    /// Returns once the lease has expired, or this client has revoked it.
    pub(crate) async fn ended(&self) {
        self.until(Self::has_ended).await;
    }

    /// Returns once the session has ended or must be revoked.
    pub(crate) async fn ended_or_done(&self) {
        self.until(|session| session.has_ended() || session.is_retired_and_empty())
            .await;
    }

    async fn until(&self, condition: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition(self) {
                return;
            }
            changed.await;
        }
    }

    /// Retires the session, into which a request of unknown outcome may put a key: no new claim may enter it.
    pub(crate) fn retire(&self) {
        {
            let mut status = self.status.lock();
            (status.retired, status.in_doubt) = (true, true);
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pinned.load(Ordering::SeqCst) == 0 && self.status.lock().holds.is_empty()
    }

    fn is_retired_and_empty(&self) -> bool {
        self.status.lock().retired && self.is_empty()
    }

    /// Whether a hold of this claim may stay here.
    pub(crate) fn suits(&self, claim: &Claim, own: bool) -> bool {
        let class = Class::for_hold(claim, own);
        let long_enough = self.class.seconds.max(self.ttl.as_secs()) >= class.seconds;
        self.class.only == class.only && long_enough
    }

    /// Notes a hold of this claim until its lease ends. The lease counts from when the request was sent (`sent`), or from when
    /// the session was confirmed if that was later. The end never moves back, unless it is to `shorten`. Returns for how long
    /// the client may believe. That is never longer than the store keeps the hold. `None` if the session or the hold has ended.
    pub(crate) fn hold(
        &self,
        claim: &Claim,
        key: &[u8],
        revision: i64,
        tokens: Tokens,
        (sent, how): (BootInstant, Holding),
    ) -> Option<Grant> {
        let mut status = self.status.lock();
        if status.ended || status.revoked {
            return None;
        }
        let counted_from = status.confirmed;
        // The session may have been confirmed after the claim was sent. What the client may believe and what is kept begin at
        // the same time.
        let from = sent.max(counted_from);
        let longest = self.ttl.saturating_sub(claim.lock_delay);
        let lease = longest.min(from.since(counted_from) + claim.ttl);
        let before = status.holds.get(&claim.id);
        let shorten = match how {
            Holding::New => false,
            Holding::Again { .. } if before.is_none() => return None,
            Holding::Again { shorten } => shorten,
        };
        let since = before.map_or(sent, |hold| hold.since);
        let until = from + claim.ttl + claim.lock_delay;
        let hold = Hold {
            key: key.to_vec(),
            revision,
            since,
            until: before
                .filter(|_| !shorten)
                .map_or(until, |hold| until.max(hold.until)),
        };
        status.holds.insert(claim.id, hold);
        status.used = sent;
        Some(Grant::new(tokens, counted_from, lease))
    }

    pub(crate) fn has_hold(&self, claim: ClaimId) -> bool {
        self.status.lock().holds.contains_key(&claim)
    }

    /// Forgets a hold. `false` if there was none.
    pub(crate) fn forget_hold(&self, claim: ClaimId) -> bool {
        let forgotten = self.status.lock().holds.remove(&claim).is_some();
        if forgotten {
            self.notify_if_done();
        }
        forgotten
    }

    /// Hands a hold over to another session. `false` if it has ended here.
    pub(crate) fn hand_over(&self, claim: ClaimId, to: &Self) -> bool {
        let Some(hold) = self.status.lock().holds.remove(&claim) else {
            return false;
        };
        to.status.lock().holds.insert(claim, hold);
        self.notify_if_done();
        true
    }

    /// A retired session is revoked as soon as it is empty. Other sessions are kept for a while, so no task is woken for them.
    fn notify_if_done(&self) {
        if self.is_retired_and_empty() {
            self.changed.notify_waiters();
        }
    }

    /// Leaves a hold for its lock-delay. The validity of a hold ends a little before its lease.
    pub(crate) fn abandon(&self, claim: &Claim) {
        let margin = claim.ttl / 50 + Duration::from_millis(10);
        let latest = Clock::Boot.now() + claim.lock_delay + margin;
        if let Some(hold) = self.status.lock().holds.get_mut(&claim.id) {
            hold.until = hold.until.min(latest);
        }
    }

    /// Marks the session as ended. Returns the claims that held in it.
    pub(crate) fn end(&self) -> Vec<ClaimId> {
        let mut status = self.status.lock();
        status.ended = true;
        let holds = status.holds.drain().map(|(id, _)| id).collect();
        drop(status);
        self.changed.notify_waiters();
        holds
    }

    /// Whether only the renewals of its single holder prolong it.
    fn is_held_by_one(&self) -> bool {
        self.class.is_for_one() && !self.status.lock().holds.is_empty()
    }

    /// Whether its background task must prolong it now.
    pub(crate) fn must_be_prolonged(&self, now: BootInstant) -> bool {
        !self.is_held_by_one() && now >= self.status.lock().confirmed + self.ttl / 4
    }

    /// When its background task has something to do: the lease must be prolonged, a hold has expired, or the session has been
    /// unused for a long time.
    pub(crate) fn next_wake_up(&self, failed: bool) -> BootInstant {
        let (now, held_by_one, empty) = (Clock::Boot.now(), self.is_held_by_one(), self.is_empty());
        let status = self.status.lock();
        let prolong = match failed {
            true => now + (self.ttl / 20).min(Duration::from_millis(500)),
            false => status.confirmed + self.ttl / 4,
        };
        let expiry = status.holds.values().map(|hold| hold.until).min();
        let times = [
            (!held_by_one).then_some(prolong),
            expiry,
            empty.then_some(status.used + IDLE),
        ];
        let first = times.into_iter().flatten().min().unwrap_or(prolong);
        first.max(now + Duration::from_millis(10))
    }

    /// Whether it is empty and no later claim will use it.
    pub(crate) fn is_done(&self, now: BootInstant) -> bool {
        if !self.is_empty() {
            return false;
        }
        let status = self.status.lock();
        let idle = now.since(status.used) >= IDLE;
        status.retired || self.class.is_for_one() || idle
    }

    /// Closes an empty session to all claims before it is revoked. `false` if it is not empty.
    pub(crate) fn close(&self) -> bool {
        let mut status = self.status.lock();
        if self.pinned.load(Ordering::SeqCst) > 0 || !status.holds.is_empty() {
            return false;
        }
        (status.retired, status.revoked) = (true, true);
        true
    }
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// The sessions that new claims may enter.
    open: Mutex<HashMap<Class, Arc<Session>>>,
    /// All sessions by lease, including those that are retired.
    all: Mutex<HashMap<i64, Arc<Session>>>,
    pub(crate) opening: SingleFlight,
}

impl Sessions {
    pub(crate) fn by_lease(&self, lease: i64) -> Option<Arc<Session>> {
        self.all.lock().get(&lease).cloned()
    }

    /// An open session of this class with room for a key of this length.
    pub(crate) fn usable(&self, class: Class, bytes: usize) -> Option<Arc<Pin>> {
        let session = self.open.lock().get(&class).cloned()?;
        let status = session.status.lock();
        // A session that has not been confirmed for a long time may have expired.
        let fresh = Clock::Boot.now().since(status.confirmed) < session.ttl * 2 / 3;
        let full = session.pinned.load(Ordering::SeqCst) + bytes > CAPACITY;
        if !fresh || full || status.ended || status.retired {
            return None;
        }
        // Under the lock, so that the session is not closed as empty meanwhile.
        session.pinned.fetch_add(bytes, Ordering::SeqCst);
        drop(status);
        Some(Arc::new(Pin { session, bytes }))
    }

    pub(crate) fn insert(&self, session: &Arc<Session>) {
        self.all.lock().insert(session.lease, Arc::clone(session));
        self.open.lock().insert(session.class, Arc::clone(session));
    }

    pub(crate) fn remove(&self, session: &Arc<Session>) {
        self.all.lock().remove(&session.lease);
        let mut open = self.open.lock();
        if let Some(now) = open.get(&session.class)
            && Arc::ptr_eq(now, session)
        {
            open.remove(&session.class);
        }
    }

    /// Removes and returns the sessions that are empty.
    pub(crate) fn take_empty(&self) -> Vec<Arc<Session>> {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        let empty = all.into_iter().filter(|session| session.is_empty());
        empty.inspect(|session| self.remove(session)).collect()
    }
}
