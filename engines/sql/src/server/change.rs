//! A change of a lock's rows, and everything that follows from it.

use std::time::Duration;

use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, LockName, Token, Tokens};

use super::stored::{DbInstant, Snapshot};
use crate::lease::{self, Holder, Rows, Waiter};

/// A change of a lock's rows, besides the removal of expired ones.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Draw tokens and store a holder. Its place in the queue ends.
    Grant {
        /// The new holder.
        claim: &'a Claim,
        /// Its place in the queue, if it had one.
        ticket: Option<i64>,
        /// The hold of the same claim that the new one replaces.
        replaces: Option<&'a Holder<DbInstant>>,
    },
    /// Put the claim in the queue.
    Enqueue {
        /// The waiter.
        claim: &'a Claim,
        /// Its place.
        ticket: i64,
    },
    /// Take a waiter out of the queue.
    LeaveQueue {
        /// Its place.
        ticket: i64,
    },
    /// Delete the hold.
    Release {
        /// The hold.
        holder: &'a Holder<DbInstant>,
    },
    /// Let only the lock-delay of the hold run.
    Abandon {
        /// The hold.
        holder: &'a Holder<DbInstant>,
        /// How long the lock stays held.
        lock_delay: Duration,
    },
    /// Note that the holder was asked to release.
    Ask {
        /// The hold.
        holder: &'a Holder<DbInstant>,
    },
    /// Remove only what has expired.
    Reap,
}

/// A [`Change`] with all that it depends on.
#[derive(Debug)]
pub struct Write<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The gate's version as it was read. Nothing is written if it is a different one now.
    pub version: u64,
    /// The holders that had expired. If one of them has not (its renewal arrived meanwhile), only removals may be done.
    pub expired_holders: Vec<&'a Holder<DbInstant>>,
    /// The tickets of the waiters that had expired. They are removed in any case.
    pub expired_waiters: Vec<i64>,
    /// What to do.
    pub change: Change<'a>,
    /// Whether after the change one claim holds and the queue is empty.
    pub alone: bool,
    /// Whether after the change the gate has neither holders nor a queue, and so is deleted as well.
    pub last: bool,
    /// The waiters that may hold after the change, and the addresses of their processes.
    pub next: Vec<(ClaimId, Option<Vec<u8>>)>,
}

/// The outcome of a [`Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was done. A grant has tokens.
    Done(Option<Tokens>),
    /// The rows have changed since they were read: read again.
    Stale,
}

impl<'a> Write<'a> {
    /// A change with everything that follows from it.
    pub(super) fn new(name: &'a LockName, read: &'a Snapshot, change: Change<'a>) -> Self {
        let now = read.now;
        let has_expired = |holder: &&Holder<DbInstant>| holder.expiry <= now;
        // A waiter that returns after its expiry gets its place back, unless another client was faster.
        let returns = match change {
            Change::Grant { ticket, .. } => ticket,
            Change::LeaveQueue { ticket } => Some(ticket),
            _ => None,
        };
        let is_reaped =
            |waiter: &&Waiter<DbInstant>| waiter.expiry <= now && returns != Some(waiter.ticket);
        let expired_waiters = read.rows.queue.iter().filter(is_reaped);
        let (after, comes) = rows_after(&read.rows, change, now);
        let next = after.next(now).into_iter();
        let next = next.map(|waiter| (waiter.claim, waiter.address.clone()));
        Self {
            name,
            version: read.version,
            expired_holders: read.rows.holders.iter().filter(has_expired).collect(),
            expired_waiters: expired_waiters.map(|waiter| waiter.ticket).collect(),
            change,
            alone: after.holders.len() == 1 && after.queue.is_empty(),
            last: !comes && after.holders.is_empty() && after.queue.is_empty(),
            next: next.collect(),
        }
    }
}

/// The live rows after a change, and whether the change adds a row.
fn rows_after(
    rows: &Rows<DbInstant>,
    change: Change<'_>,
    now: DbInstant,
) -> (Rows<DbInstant>, bool) {
    let mut after = rows.clone();
    after.holders.retain(|holder| holder.expiry > now);
    after.queue.retain(|waiter| waiter.expiry > now);
    let remove = |rows: &mut Rows<DbInstant>, gone: &Holder<DbInstant>| {
        let stays = |holder: &Holder<DbInstant>| holder.tokens.first != gone.tokens.first;
        rows.holders.retain(stays);
    };
    let mut comes = false;
    match change {
        Change::Grant {
            claim,
            ticket,
            replaces,
        } => {
            comes = true;
            after.queue.retain(|waiter| Some(waiter.ticket) != ticket);
            if let Some(holder) = replaces {
                remove(&mut after, holder);
            }
            after.holders.push(Holder {
                claim: claim.id,
                mode: claim.mode,
                tokens: Tokens::one(Token(0)),
                expiry: lease::expiry(claim, now),
                abandoned: false,
            });
        }
        Change::Enqueue { .. } => comes = true,
        Change::LeaveQueue { ticket } => after.queue.retain(|waiter| waiter.ticket != ticket),
        Change::Release { holder } => remove(&mut after, holder),
        Change::Abandon { .. } | Change::Ask { .. } | Change::Reap => {}
    }
    (after, comes)
}
