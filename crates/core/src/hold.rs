//! A grant as the client knows it: until when it may be believed, and whether it was lost.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{BootInstant, Clock};
use crate::engine::{Claim, Grant, HeldClaim};
use crate::token::{Token, Tokens};

/// A claim that holds. Shared by its guards, the keeper and the line.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) renews: bool,
    /// It belongs to another process; this one only believes in it.
    pub(crate) joined: bool,
    clock: Clock,
    tokens: Tokens,
    /// Validity never goes beyond this (`max_hold`).
    ends: BootInstant,
    valid_until: AtomicU64,
    /// How many of the tokens were handed on.
    passed: AtomicU32,
    /// The token that the store knows; 0 for none.
    recorded: AtomicU64,
    /// Whether a waiter of this process may have it: not if it was asked for with an end or without renewal, or if
    /// others are to read its token.
    plain: bool,
    /// A sequencer is out, so that the store must keep naming the token in it.
    sequenced: AtomicBool,
    asked: AtomicBool,
    lost: OnceLock<String>,
    /// Guards that share the hold (reentrancy).
    guards: AtomicUsize,
    /// Something above changed, or a renewal came to its end.
    pub(crate) news: Notify,
}

/// How much less the client believes than the server keeps: clocks that run up to 1 % apart, and 2 ms of rounding.
fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}

/// The end of what a client may believe of a lease.
pub(crate) fn valid_until(counted_from: BootInstant, lease: Duration) -> BootInstant {
    counted_from + lease.saturating_sub(drift(lease))
}

impl Hold {
    pub(crate) fn new(
        claim: Claim,
        grant: &Grant,
        clock: Clock,
        renews: bool,
        max_hold: Option<Duration>,
    ) -> Self {
        let ends = max_hold.map_or(BootInstant::from_nanos(u64::MAX), |most| clock.now() + most);
        let valid = valid_until(grant.counted_from, grant.lease).min(ends);
        let plain = renews && max_hold.is_none() && !claim.record;
        Self {
            claim,
            renews,
            joined: false,
            clock,
            tokens: grant.tokens,
            ends,
            valid_until: AtomicU64::new(valid.as_nanos()),
            passed: AtomicU32::new(0),
            plain,
            recorded: AtomicU64::new(match grant.recorded {
                true => grant.tokens.first.0,
                false => 0,
            }),
            sequenced: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            lost: OnceLock::new(),
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

    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// True the first time.
    pub(crate) fn lose(&self, why: impl Into<String>) -> bool {
        let first = self.lost.set(why.into()).is_ok();
        self.news.notify_waiters();
        first
    }

    /// A renewal took effect. False if that came too late: what is lost stays lost.
    pub(crate) fn prolong(&self, counted_from: BootInstant, lease: Duration) -> bool {
        if !self.is_valid() {
            return false;
        }
        let valid = valid_until(counted_from, lease).min(self.ends);
        // Not a maximum: `refresh` may shorten a lease.
        self.valid_until.store(valid.as_nanos(), SeqCst);
        self.news.notify_waiters();
        true
    }

    pub(crate) fn ask(&self) {
        self.asked.store(true, SeqCst);
        self.news.notify_waiters();
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(SeqCst)
    }

    pub(crate) fn token(&self) -> Token {
        Token(self.tokens.first.0 + u64::from(self.passed.load(SeqCst)))
    }

    /// The claim with its present token, for the engine.
    pub(crate) fn held_claim(&self) -> HeldClaim {
        HeldClaim {
            claim: self.claim.clone(),
            token: self.token(),
        }
    }

    /// Marks that a sequencer is to be made; says whether the store must be told the token first.
    pub(crate) fn sequence(&self) -> bool {
        self.sequenced.store(true, SeqCst);
        self.recorded.load(SeqCst) != self.token().0
    }

    /// The store knows `token` now.
    pub(crate) fn record(&self, token: Token) {
        self.recorded.store(token.0, SeqCst);
    }

    /// Whether a waiter of this process with `next` as its claim may have this hold, as it would have one of its own.
    pub(crate) fn may_pass_to(&self, next: &Claim) -> bool {
        let mine = &self.claim;
        self.plain
            && self.passed.load(SeqCst) + 1 < self.tokens.count
            && !self.sequenced.load(SeqCst)
            && !self.asked.load(SeqCst)
            && mine.ttl == next.ttl
            && mine.lock_delay == next.lock_delay
            && mine.mode == next.mode
            && mine.label == next.label
            && mine.owner == next.owner
            && self.is_valid()
    }

    /// Moves on to the next token. Only the line calls this, for one waiter at a time.
    pub(crate) fn pass(&self) {
        self.passed.fetch_add(1, SeqCst);
    }

    pub(crate) fn add_guard(&self) {
        self.guards.fetch_add(1, SeqCst);
    }

    /// Adds a guard unless the last one is gone already.
    pub(crate) fn add_guard_if_any(&self) -> bool {
        self.guards
            .fetch_update(SeqCst, SeqCst, |n| (n > 0).then_some(n + 1))
            .is_ok()
    }

    /// True for the last one.
    pub(crate) fn drop_guard(&self) -> bool {
        self.guards.fetch_sub(1, SeqCst) == 1
    }

    /// Waits until `done` says so; looks again at every piece of news.
    pub(crate) async fn until<T>(&self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Registered before looking, so that nothing between is missed.
            news.as_mut().enable();
            if let Some(result) = done(self) {
                return result;
            }
            news.await;
        }
    }
}
