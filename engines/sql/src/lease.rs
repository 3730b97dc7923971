//! The lease algorithm: what the rows of a lock mean, and what a claim may do next. Every dialect reads the rows,
//! asks here, and writes what it is told, all in one transaction.
//!
//! * A *holder's* row is alive until its expiry, which is `ttl + lock_delay` after the last write. A row past its
//!   expiry means nothing and is deleted by whoever meets it. An *abandoned* row (its holder lost the lock) keeps others
//!   out for the rest of the lock-delay, and can be neither renewed nor handed over.
//! * A *waiter's* row has a ticket, which orders the line, and an expiry, which its process moves on by placing again.
//!   A waiter past its expiry blocks nobody; it has its place back if it returns before anybody deleted the row.
//! * One rule admits: a claim may hold if it can stand beside every live holder **and** every live waiter ahead
//!   of it. So a writer ahead keeps new readers out, and readers side by side come in together.
//! * The token is drawn after the claim was admitted, in the same transaction: who is granted later has a higher one.

use std::ops::Add;
use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{BootInstant, ClaimId, Mode, engine};

/// Where the process of a claim can be reached, if it can. What the bytes mean is the dialect's business.
pub type Address = Option<Vec<u8>>;

/// A holder's row. `T` is an instant on the clock that expiries are counted on.
#[derive(Clone, Debug)]
pub struct Holder<T = BootInstant> {
    /// Who holds.
    pub claim: ClaimId,
    /// The mode it is held in.
    pub mode: Mode,
    /// The tokens of the grant.
    pub tokens: fencelock_core::Tokens,
    /// From then on the row means nothing.
    pub expiry: T,
    /// Its holder lost the lock.
    pub abandoned: bool,
}

/// A waiter's row.
#[derive(Clone, Debug)]
pub struct Waiter<T = BootInstant> {
    /// Who waits.
    pub claim: ClaimId,
    /// Its place in the line.
    pub ticket: i64,
    /// The mode that it asks for.
    pub mode: Mode,
    /// From then on it blocks nobody.
    pub expiry: T,
    /// Where its process hears of its turn.
    pub address: Address,
}

/// The rows of one lock, the dead among them; the line in the order of its tickets.
#[derive(Clone, Debug)]
pub struct Rows<T = BootInstant> {
    /// Those that hold.
    pub holders: Vec<Holder<T>>,
    /// Those that wait.
    pub line: Vec<Waiter<T>>,
}

/// What a claim that is placed may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<T = BootInstant> {
    /// It holds already: prolong, and report the same tokens.
    Prolong(fencelock_core::Tokens),
    /// It holds alone and asks for less: draw a new token, store the new mode, call those who may join.
    Downgrade,
    /// It holds and asks for something that is no less: refuse.
    Refuse(Mode),
    /// Draw a token and store a holder; its place in line, if it had one, is over.
    Grant,
    /// Stand in line, at the ticket that it has, or at a new one behind all others.
    Wait {
        /// The place that it has.
        ticket: Option<i64>,
        /// How many stand before it.
        ahead: u64,
        /// When the first of those who hold would be over, if only holders are in the way.
        until: Option<T>,
    },
    /// Not to be had, and not to be waited for: leave nothing.
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
        let place = self.line.iter().position(|waiter| waiter.claim == claim.id);
        let ahead = &self.line[..place.unwrap_or(self.line.len())];
        let ahead = || ahead.iter().filter(|waiter| waiter.expiry > now);
        let holding = || self.live_holders(now).map(|holder| holder.mode);
        if beside(
            claim.mode,
            holding().chain(ahead().map(|waiter| waiter.mode)),
        ) {
            return Step::Grant;
        }
        if !claim.wait {
            return Step::Busy;
        }
        let first_in_line = ahead().next().is_none();
        let until = self.live_holders(now).map(|holder| holder.expiry).min();
        Step::Wait {
            ticket: place.map(|place| self.line[place].ticket),
            ahead: ahead().count() as u64,
            until: until.filter(|_| first_in_line),
        }
    }

    /// Those in line who may hold now, in order. The rows must be those after the change.
    pub fn next(&self, now: T) -> Vec<&Waiter<T>> {
        let mut modes: Vec<Mode> = self.live_holders(now).map(|holder| holder.mode).collect();
        let mut next = Vec::new();
        for waiter in self.line.iter().filter(|waiter| waiter.expiry > now) {
            if !beside(waiter.mode, modes.iter().copied()) {
                break;
            }
            modes.push(waiter.mode);
            next.push(waiter);
        }
        next
    }

    /// Whether there are rows past their expiry, which whoever writes should delete.
    pub fn has_dead(&self, now: T) -> bool {
        let mut expiries = (self.holders.iter().map(|holder| holder.expiry))
            .chain(self.line.iter().map(|waiter| waiter.expiry));
        expiries.any(|expiry| expiry <= now)
    }

    fn live_holders(&self, now: T) -> impl Iterator<Item = &Holder<T>> {
        let live = move |holder: &&Holder<T>| holder.expiry > now;
        self.holders.iter().filter(live)
    }
}

/// Whether a claim of this mode may stand beside claims of those modes.
fn beside(mode: Mode, others: impl Iterator<Item = Mode>) -> bool {
    let mut others = others.enumerate();
    match mode {
        Mode::Exclusive => others.next().is_none(),
        Mode::Shared => others.all(|(_, other)| other == Mode::Shared),
        Mode::Permit { of } => {
            let (mut count, mut limit) = (0, of.get());
            for (_, other) in others {
                let Mode::Permit { of } = other else {
                    return false;
                };
                count += 1;
                limit = limit.min(of.get());
            }
            count < limit
        }
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

/// How many tokens one grant may have at most: the counter, which is seeded with the time in microseconds, then grows
/// more slowly than time does, so a seed is above every token of before.
pub const MOST_TOKENS: u32 = 16;

/// The tokens of a grant, from the last one drawn.
pub fn tokens_up_to(last: i64, count: u32) -> fencelock_core::Tokens {
    let first = fencelock_core::Token(last.unsigned_abs() + 1 - u64::from(count));
    fencelock_core::Tokens { first, count }
}

/// When the lease that counts from `now` is over for the database.
pub fn expiry<T: Add<Duration, Output = T>>(claim: &engine::Claim, now: T) -> T {
    now + claim.ttl.saturating_add(claim.lock_delay)
}
