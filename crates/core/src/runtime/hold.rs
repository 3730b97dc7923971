//! A grant as the client knows it: until when the client may believe in it, and whether it was lost.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::cancel::Cancel;
use super::health::Health;
use super::seen::Seen;
use crate::engine::{Claim, Grant, HeldClaim};
use crate::types::{BootInstant, Clock, Error, LossReason, Mode, Token, Tokens};

/// A claim that holds. Shared by its guards, the schedule of renewals and the queue.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) renews: bool,
    healthy: Option<Health>,
    /// Its holder was not healthy when a renewal was due, and no renewal has succeeded since.
    unhealthy: AtomicBool,
    /// Whether it belongs to another process, and this one has only joined it.
    pub(crate) joined: bool,
    clock: Clock,
    tokens: Tokens,
    /// Validity never goes beyond this (`max_hold`).
    ends: BootInstant,
    /// Until when the store must keep it, even after a release (`at_least`).
    stays_until: Option<BootInstant>,
    /// Whether the caller of the request has a guard.
    delivered: AtomicBool,
    valid_until: AtomicU64,
    /// The shortest lease, in nanoseconds, that a shortening renewal without an answer asked for.
    doubted: AtomicU64,
    /// Until when the store may keep it, according to all requests so far.
    kept_until: AtomicU64,
    /// How many of the tokens were handed on.
    handed_on: AtomicU32,
    /// The token that the store knows; 0 for none.
    recorded: AtomicU64,
    /// Whether it may be handed to a waiter of this process. It may not if the request set an end or switched renewals off, or
    /// if others are to read the token.
    plain: bool,
    /// Whether no waiter of this process may get it: a sequencer was made, so the store must keep its token, or it is being
    /// downgraded.
    barred: AtomicBool,
    asked: AtomicBool,
    /// The token of the shared mode, after a downgrade.
    downgraded: OnceLock<Token>,
    /// Whether the claim is being withdrawn, or was withdrawn.
    given_back: AtomicBool,
    lost: OnceLock<LossReason>,
    /// Cancelled with the loss.
    pub(crate) cancel: Cancel,
    pub(crate) seen: Seen,
    /// Guards that share the hold (reentrancy).
    guards: AtomicUsize,
    /// Notified when a field above changed, or a renewal has ended.
    pub(crate) news: Notify,
}

/// How a grant is to be held.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Whether it is renewed by itself.
    pub(crate) renews: bool,
    /// The time after which it ends in any case.
    pub(crate) max_hold: Option<Duration>,
    /// The time for which the store keeps it in any case.
    pub(crate) at_least: Option<Duration>,
    /// The condition of a renewal.
    pub(crate) healthy: Option<Health>,
}

impl Terms {
    /// Whether the terms have nothing but renewals. Then a waiter of this process may get the hold of another one.
    pub(crate) fn are_plain(&self) -> bool {
        self.renews && self.max_hold.is_none() && self.at_least.is_none() && self.healthy.is_none()
    }
}

/// How much shorter the client believes than the server keeps: clocks differ by up to 1 %, and rounding by up to 2 ms.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The end of what a client may believe of a lease.
pub(crate) fn valid_until(counted_from: BootInstant, lease: Duration) -> BootInstant {
    counted_from + lease.saturating_sub(drift(lease))
}

/// A planted bug: the lease counts from when the answer came.
#[cfg(fencelock_planted)]
fn counted_from(rightly: BootInstant, clock: Clock) -> BootInstant {
    match crate::planted::is("validity-from-reply") {
        true => clock.now(),
        false => rightly,
    }
}

impl Hold {
    pub(crate) fn new(claim: Claim, grant: &Grant, clock: Clock, terms: Terms) -> Self {
        #[cfg(fencelock_planted)]
        let grant = &Grant {
            counted_from: counted_from(grant.counted_from, clock),
            ..*grant
        };
        let never = BootInstant::from_nanos(u64::MAX);
        let after = |period: Duration| clock.now() + period;
        let ends = terms.max_hold.map_or(never, after);
        let valid = valid_until(grant.counted_from, grant.lease).min(ends);
        let plain = terms.are_plain() && !claim.record;
        Self {
            claim,
            renews: terms.renews,
            healthy: terms.healthy,
            unhealthy: AtomicBool::new(false),
            joined: false,
            clock,
            tokens: grant.tokens,
            ends,
            stays_until: terms.at_least.map(after),
            delivered: AtomicBool::new(false),
            valid_until: AtomicU64::new(valid.as_nanos()),
            doubted: AtomicU64::new(u64::MAX),
            kept_until: AtomicU64::new((grant.counted_from + grant.lease).as_nanos()),
            handed_on: AtomicU32::new(0),
            plain,
            recorded: AtomicU64::new(match grant.recorded {
                true => grant.tokens.first.0,
                false => 0,
            }),
            barred: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            downgraded: OnceLock::new(),
            given_back: AtomicBool::new(false),
            lost: OnceLock::new(),
            cancel: Cancel::default(),
            seen: Seen::default(),
            guards: AtomicUsize::new(0),
            news: Notify::new(),
        }
    }

    pub(crate) fn valid_until(&self) -> BootInstant {
        BootInstant::from_nanos(self.valid_until.load(SeqCst))
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.lost.get().is_none() && self.clock.now() < self.valid_until()
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.lost.get() {
            Some(_) => Duration::ZERO,
            None => self.valid_until().since(self.clock.now()),
        }
    }

    pub(crate) fn lost(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// Marks the hold as lost. True the first time.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let first = self.lost.set(reason).is_ok();
        self.cancel.cancel();
        self.news.notify_waiters();
        first
    }

    /// Notes that a renewal took effect. False if that came too late: a lost hold stays lost.
    pub(crate) fn prolong(&self, counted_from: BootInstant, lease: Duration) -> bool {
        if !self.is_valid() {
            return false;
        }
        #[cfg(fencelock_planted)]
        let counted_from = self::counted_from(counted_from, self.clock);
        let valid = valid_until(counted_from, lease).min(self.ends);
        // Validity that a shortening renewal took away ended when it was sent.
        self.valid_until.fetch_max(valid.as_nanos(), SeqCst);
        self.unhealthy.store(false, SeqCst);
        self.news.notify_waiters();
        true
    }

    /// Notes that a request is about to be sent that may shorten the lease to `lease`. From then on the store may keep the lock
    /// for no longer than that, whether an answer comes or not. True if that is less than was believed.
    pub(crate) fn curtail(&self, lease: Duration) -> bool {
        let most = valid_until(self.clock.now(), lease).as_nanos();
        let less = most < self.valid_until.fetch_min(most, SeqCst);
        if less {
            self.news.notify_waiters();
        }
        less
    }

    /// Notes that the store was asked to keep it for `lease`.
    pub(crate) fn note_asked(&self, lease: Duration) {
        let until = self.clock.now() + lease;
        self.kept_until.fetch_max(until.as_nanos(), SeqCst);
    }

    /// Until when the store may keep it, lock-delay aside.
    pub(crate) fn kept_until(&self) -> BootInstant {
        BootInstant::from_nanos(self.kept_until.load(SeqCst))
    }

    /// Notes that a renewal that shortens to `lease` had no answer. It may still arrive at any time, and shorten a longer
    /// lease.
    pub(crate) fn doubt(&self, lease: Duration) {
        let nanos = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        self.doubted.fetch_min(nanos, SeqCst);
    }

    /// How much of the lease of a renewal is certain. If a shortening renewal in doubt arrives later, it sets its own length
    /// from then on. If it arrived before, it no longer matters.
    pub(crate) fn sure_of(&self, lease: Duration) -> Duration {
        lease.min(Duration::from_nanos(self.doubted.load(SeqCst)))
    }

    /// Runs the holder's own health check, if it has one.
    pub(crate) fn is_healthy(&self) -> bool {
        let healthy = self.healthy.as_ref().is_none_or(Health::check);
        if !healthy {
            self.unhealthy.store(true, SeqCst);
        }
        healthy
    }

    /// Why it is lost now that its validity is over, and whether this client itself ended it. In that case it may be given back
    /// although its guard still exists.
    pub(crate) fn why_over(&self) -> (LossReason, bool) {
        if self.valid_until() == self.ends {
            (LossReason::MaxHold, true)
        } else if !self.renews {
            (LossReason::NotRenewed, false)
        } else if self.unhealthy.load(SeqCst) {
            (LossReason::Unhealthy, true)
        } else {
            (LossReason::Expired, false)
        }
    }

    /// The error of a call that needs the hold, which is lost or over.
    pub(crate) fn lost_error(&self) -> Error {
        Error::Lost {
            name: self.claim.name.clone(),
            reason: self.lost().unwrap_or_else(|| self.why_over().0),
        }
    }

    pub(crate) fn ask(&self) {
        self.asked.store(true, SeqCst);
        self.news.notify_waiters();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(SeqCst)
    }

    pub(crate) fn token(&self) -> Token {
        let present = || Token(self.tokens.first.0 + u64::from(self.handed_on.load(SeqCst)));
        self.downgraded.get().copied().unwrap_or_else(present)
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.downgraded.get() {
            Some(_) => Mode::Shared,
            None => self.claim.mode,
        }
    }

    /// Notes that it is shared from now on, with this token.
    pub(crate) fn downgrade(&self, token: Token) {
        // Only the last guard downgrades, and only once.
        let _ = self.downgraded.set(token);
    }

    /// The remaining time of `at_least`.
    pub(crate) fn at_least_left(&self) -> Duration {
        let stays_until = self.stays_until;
        stays_until.map_or(Duration::ZERO, |until| until.since(self.clock.now()))
    }

    /// How much longer the store must keep it after the hold is over. Zero if no caller had a guard, or if the store no longer
    /// has the hold.
    pub(crate) fn owes(&self) -> Duration {
        let gone = matches!(
            self.lost(),
            Some(
                LossReason::TakenAway
                    | LossReason::SessionEnded
                    | LossReason::ConnectionEnded
                    | LossReason::StoreForgot
            )
        );
        match self.delivered.load(SeqCst) && !gone {
            true => self.at_least_left(),
            false => Duration::ZERO,
        }
    }

    pub(crate) fn deliver(&self) {
        self.delivered.store(true, SeqCst);
    }

    pub(crate) fn has_at_least(&self) -> bool {
        self.stays_until.is_some()
    }

    /// How long after the beginning of `lease` it must be renewed. A lease that is long because of `at_least` is renewed as
    /// often as any other, so that a loss is found equally soon.
    pub(crate) fn renewed_after(&self, lease: Duration) -> Duration {
        match self.at_least_left().is_zero() {
            true => lease / 3,
            false => lease.min(self.claim.ttl) / 3,
        }
    }

    /// The claim in its present mode.
    pub(crate) fn claim_now(&self) -> Cow<'_, Claim> {
        if self.stays_until.is_none() && self.downgraded.get().is_none() {
            return Cow::Borrowed(&self.claim);
        }
        let mut claim = self.claim.clone();
        claim.mode = self.mode();
        claim.ttl = claim.ttl.max(self.at_least_left());
        Cow::Owned(claim)
    }

    /// The claim for the next renewal, with its present token. Its ttl is not shorter than the remaining validity, because a
    /// lock service of an earlier version shortens leases on its own.
    pub(crate) fn held_claim(&self) -> HeldClaim {
        let mut claim = self.claim_now().into_owned();
        claim.ttl = claim.ttl.max(self.remaining());
        HeldClaim::new(claim, self.token())
    }

    /// The claim for a renewal with this ttl, which shortens the lease if the store may keep it for longer.
    pub(crate) fn held_claim_for(&self, ttl: Duration) -> HeldClaim {
        let mut claim = self.claim_now().into_owned();
        claim.ttl = ttl.max(self.at_least_left());
        let shorten = self.clock.now() + claim.ttl < self.kept_until();
        HeldClaim::new(claim, self.token()).shorten(shorten)
    }

    /// Notes that a sequencer is made. True if the token must be written to the store first.
    pub(crate) fn sequence(&self) -> bool {
        self.bar_hand_on();
        self.recorded.load(SeqCst) != self.token().0
    }

    /// From now on no waiter of this process gets this hold.
    pub(crate) fn bar_hand_on(&self) {
        self.barred.store(true, SeqCst);
    }

    /// Notes that the store knows `token` now.
    pub(crate) fn record(&self, token: Token) {
        self.recorded.store(token.0, SeqCst);
    }

    /// Whether a waiter of this process with the claim `next` may get this hold instead of one of its own.
    pub(crate) fn may_hand_on_to(&self, next: &Claim) -> bool {
        let mine = &self.claim;
        self.plain
            && self.handed_on.load(SeqCst) + 1 < self.tokens.count
            && !self.barred.load(SeqCst)
            && !self.asked.load(SeqCst)
            && mine.ttl == next.ttl
            && mine.lock_delay == next.lock_delay
            && self.mode() == next.mode
            && mine.label == next.label
            && mine.owner == next.owner
            && self.is_valid()
    }

    /// Moves on to the next token. Only the queue calls this, for one waiter at a time.
    pub(crate) fn hand_on(&self) {
        self.handed_on.fetch_add(1, SeqCst);
    }

    pub(crate) fn add_guard(&self) {
        self.guards.fetch_add(1, SeqCst);
    }

    /// Adds a guard unless the last one is already dropped.
    pub(crate) fn add_guard_if_any(&self) -> bool {
        self.guards
            .fetch_update(SeqCst, SeqCst, |n| (n > 0).then_some(n + 1))
            .is_ok()
    }

    /// True for the one caller that must withdraw the claim.
    pub(crate) fn may_give_back(&self) -> bool {
        !self.given_back.swap(true, SeqCst)
    }

    pub(crate) fn has_one_guard(&self) -> bool {
        self.guards.load(SeqCst) == 1
    }

    pub(crate) fn has_no_guard(&self) -> bool {
        self.guards.load(SeqCst) == 0
    }

    /// Drops a guard. True if it was the last one.
    pub(crate) fn drop_guard(&self) -> bool {
        self.guards.fetch_sub(1, SeqCst) == 1
    }

    /// Waits until `done` returns a value. It is called again at every notification.
    pub(crate) async fn until<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        // Usually it is done already, and registering costs more than checking.
        if let Some(result) = done(self) {
            return result;
        }
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Registered before the check, so that no notification is missed.
            news.as_mut().enable();
            if let Some(result) = done(self) {
                return result;
            }
            news.await;
        }
    }
}
