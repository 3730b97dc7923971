//! The lease algorithm: what the rows of a lock mean, and what a claim may do next. Each dialect reads the rows, calls this
//! module, and writes the decision, all in one transaction (or only if nothing changed meanwhile).
//!
//! * A *holder's* row is live until its expiry, `ttl + lock_delay` after the last write. An expired row counts as missing; the
//!   next client that writes deletes it. An *abandoned* row (its holder lost the lock) keeps others out for the rest of the
//!   lock-delay, and can be neither renewed nor handed over.
//! * A *waiter's* row has a ticket, which orders the queue, and an expiry, which its process moves forward by placing the claim
//!   again. An expired waiter blocks no claim; it gets its place back if it returns before another client has deleted the row.
//! * A claim may hold if the [rule of admission](admits) admits it beside every live holder **and** every live waiter ahead of
//!   it. So a writer ahead keeps new readers out, and adjacent readers hold together.
//! * The token is drawn after the claim was admitted, in the same transaction: a later grant has a higher token.

use std::ops::Add;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::support::admission::admits;
use fencelock_core::{BootInstant, ClaimId, Mode, engine};

/// A waiter places its claim again after this time at the latest.
pub const RECHECK: Duration = Duration::from_secs(2);

/// A waiter's row expires after this time unless the claim is placed again.
pub const CLAIM_WINDOW: Duration = RECHECK.saturating_mul(3);

/// The address of a claim's process, if it can be reached. The bytes are the dialect's own.
pub type Address = Option<Vec<u8>>;

/// A holder's row. `T` is an instant on the clock that expiries are counted on.
#[derive(Clone, Debug)]
pub struct Holder<T = BootInstant> {
    /// The claim that holds.
    pub claim: ClaimId,
    /// The mode of the hold.
    pub mode: Mode,
    /// The tokens of the grant.
    pub tokens: fencelock_core::Tokens,
    /// When the row becomes invalid.
    pub expiry: T,
    /// Whether its holder lost the lock.
    pub abandoned: bool,
}

/// A waiter's row.
#[derive(Clone, Debug)]
pub struct Waiter<T = BootInstant> {
    /// The claim that waits.
    pub claim: ClaimId,
    /// Its place in the queue.
    pub ticket: i64,
    /// The mode that it asks for.
    pub mode: Mode,
    /// After this time the waiter blocks no claim.
    pub expiry: T,
    /// Where its process receives messages.
    pub address: Address,
}

/// The rows of one lock, including expired ones; the queue is in the order of its tickets.
#[derive(Clone, Debug)]
pub struct Rows<T = BootInstant> {
    /// The holders.
    pub holders: Vec<Holder<T>>,
    /// The waiters.
    pub queue: Vec<Waiter<T>>,
}

/// What a claim that is placed may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T = BootInstant> {
    /// It holds already: prolong, and report the same tokens.
    Prolong(fencelock_core::Tokens),
    /// It holds in exclusive mode and asks for a weaker one: draw a new token, store the new mode, wake the next waiters.
    Downgrade,
    /// It holds, and asks for a mode that is not weaker: refuse.
    Refuse(Mode),
    /// Draw a token and store a holder. Its place in the queue, if it had one, ends.
    Grant,
    /// Wait with the ticket that it has, or with a new one after all others.
    Wait {
        /// The ticket that it has.
        ticket: Option<i64>,
        /// How many waiters are ahead.
        ahead: u64,
        /// The first expiry of a holder, if only holders are in the way.
        until: Option<T>,
    },
    /// The lock is taken, and the claim does not wait: leave nothing.
    Busy,
}

impl<T: Copy + Ord> Rows<T> {
    /// What `claim` may do at `now`.
    pub fn step(&self, claim: &Claim, now: T) -> Step<T> {
        let holds = |holder: &&Holder<T>| holder.claim == claim.id && !holder.abandoned;
        if let Some(mine) = self.live_holders(now).find(holds) {
            return match (mine.mode, claim.mode) {
                (held, asked) if held == asked => Step::Prolong(mine.tokens),
                (Mode::Exclusive, _) => Step::Downgrade,
                (held, _) => Step::Refuse(held),
            };
        }
        let place = self
            .queue
            .iter()
            .position(|waiter| waiter.claim == claim.id);
        let ahead = &self.queue[..place.unwrap_or(self.queue.len())];
        let ahead = || ahead.iter().filter(|waiter| waiter.expiry > now);
        let holding = || self.live_holders(now).map(|holder| holder.mode);
        if admits(
            claim.mode,
            holding().chain(ahead().map(|waiter| waiter.mode)),
        ) {
            return Step::Grant;
        }
        if !claim.wait {
            return Step::Busy;
        }
        let is_first = ahead().next().is_none();
        let until = self.live_holders(now).map(|holder| holder.expiry).min();
        Step::Wait {
            ticket: place.map(|place| self.queue[place].ticket),
            ahead: ahead().count() as u64,
            until: until.filter(|_| is_first),
        }
    }

    /// The waiters that may hold now, in order. The rows must be those after the change.
    pub fn next(&self, now: T) -> Vec<&Waiter<T>> {
        let mut modes: Vec<Mode> = self.live_holders(now).map(|holder| holder.mode).collect();
        let mut next = Vec::new();
        for waiter in self.queue.iter().filter(|waiter| waiter.expiry > now) {
            if !admits(waiter.mode, modes.iter().copied()) {
                break;
            }
            modes.push(waiter.mode);
            next.push(waiter);
        }
        next
    }

    /// Whether there are expired rows, which the next write should delete.
    pub fn has_expired(&self, now: T) -> bool {
        let mut expiries = (self.holders.iter().map(|holder| holder.expiry))
            .chain(self.queue.iter().map(|waiter| waiter.expiry));
        expiries.any(|expiry| expiry <= now)
    }

    /// The hold of a claim, live or expired, but not abandoned.
    pub fn holder(&self, claim: ClaimId) -> Option<&Holder<T>> {
        let is_mine = |holder: &&Holder<T>| holder.claim == claim && !holder.abandoned;
        self.holders.iter().find(is_mine)
    }

    /// The ticket of a claim that waits.
    pub fn ticket(&self, claim: ClaimId) -> Option<i64> {
        let mine = self.queue.iter().find(|waiter| waiter.claim == claim);
        mine.map(|mine| mine.ticket)
    }

    fn live_holders(&self, now: T) -> impl Iterator<Item = &Holder<T>> {
        let live = move |holder: &&Holder<T>| holder.expiry > now;
        self.holders.iter().filter(live)
    }
}

/// How a mode is stored: `x`, `s`, or `p:5` for one of five permits.
pub fn mode_text(mode: Mode) -> std::borrow::Cow<'static, str> {
    match mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Permit { of } => format!("p:{of}").into(),
    }
}

/// A mode from what is stored.
pub fn mode_from(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => {
            let of = text.strip_prefix("p:")?.parse().ok()?;
            Some(Mode::Permit { of })
        }
    }
}

/// How many tokens one grant may have at most. So a counter that was seeded with the time in microseconds grows more slowly
/// than time does. Therefore a new seed is above every earlier token.
pub const MOST_TOKENS: u32 = 16;

/// The tokens of a grant, from the last one drawn.
pub fn tokens_up_to(last: i64, count: u32) -> fencelock_core::Tokens {
    let first = fencelock_core::Token(last.unsigned_abs() + 1 - u64::from(count));
    fencelock_core::Tokens::new(first, count)
}

/// When a lease that counts from `now` ends for the database.
pub fn expiry<T: Add<Duration, Output = T>>(claim: &engine::Claim, now: T) -> T {
    now + claim.ttl.saturating_add(claim.lock_delay)
}
