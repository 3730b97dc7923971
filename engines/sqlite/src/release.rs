//! Withdrawing a claim: release, leave the queue, abandon.

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{ClaimId, LockName, Result};
use rusqlite::{OptionalExtension, Row, params};

use crate::handle::Handle;
use crate::rows::{leave_queue, read, wake_next};
use crate::stored::{Sql, duration_value, instant_value};
use crate::transaction::Transaction;

pub(crate) async fn withdraw(worker: &Handle, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    worker
        .write_small("releasing", claim, move |transaction, claim| {
            leave(transaction, claim, how)
        })
        .await
}

fn leave(transaction: &mut Transaction<'_>, claim: &Claim, how: Leave) -> Sql<Withdrawn> {
    transaction.entries.remove(claim.id);
    let name = &claim.name;
    let delays = how == Leave::Abandon && !claim.lock_delay.is_zero();
    if !delays && release_alone(transaction, claim)? {
        return Ok(Withdrawn::Released);
    }
    if let Some(Held {
        expiry,
        has_waiters,
    }) = stored(transaction, name, claim.id)?
    {
        let live = expiry > instant_value(transaction.now);
        match delays && live {
            true => abandon(transaction, claim)?,
            false => delete(transaction, name, claim.id)?,
        }
        if has_waiters && !delays {
            wake_next(transaction, name)?;
        }
        return Ok(match live {
            true => Withdrawn::Released,
            false => Withdrawn::Expired,
        });
    }
    let rows = read(transaction.connection, name)?;
    if leave_queue(transaction, name, claim.id, &rows)? {
        wake_next(transaction, name)?;
        return Ok(Withdrawn::LeftQueue);
    }
    let expired = |expiry| expiry <= transaction.now;
    Ok(
        match rows.holders.iter().all(|holder| expired(holder.expiry)) {
            true => Withdrawn::Expired,
            false => Withdrawn::NotOwner,
        },
    )
}

/// Deletes a hold of a lock without waiters, in one statement. Returns whether there was one whose lease is not over.
fn release_alone(transaction: &Transaction<'_>, claim: &Claim) -> Sql<bool> {
    let sql = "DELETE FROM holders WHERE name = ?1 AND claim = ?2 AND expiry > ?3 \
               AND NOT EXISTS (SELECT 1 FROM waiters WHERE name = ?1)";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        instant_value(transaction.now),
    ];
    let mut delete = transaction.connection.prepare_cached(sql)?;
    Ok(delete.execute(values)? > 0)
}

/// A hold as it was stored.
struct Held {
    expiry: i64,
    /// Whether the lock has waiters.
    has_waiters: bool,
}

fn delete(transaction: &Transaction<'_>, name: &LockName, claim: ClaimId) -> Sql<()> {
    let sql = "DELETE FROM holders WHERE name = ?1 AND claim = ?2";
    transaction.execute(sql, params![name.as_str(), claim.as_bytes()])
}

/// Lets the lock-delay run, but not beyond the expiry of the hold.
fn abandon(transaction: &Transaction<'_>, claim: &Claim) -> Sql<()> {
    let sql = "UPDATE holders SET state = 'abandoned', expiry = min(expiry, ?3), lock_delay = ?4 \
               WHERE name = ?1 AND claim = ?2";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        instant_value(transaction.now + claim.lock_delay),
        duration_value(claim.lock_delay),
    ];
    transaction.execute(sql, values)
}

/// A SELECT and a change together cost a fraction of a change with RETURNING, which SQLite runs through a temporary table.
fn stored(transaction: &Transaction<'_>, name: &LockName, claim: ClaimId) -> Sql<Option<Held>> {
    let sql = "SELECT expiry, EXISTS (SELECT 1 FROM waiters WHERE name = ?1) FROM holders \
               WHERE name = ?1 AND claim = ?2";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    let held = |row: &Row<'_>| {
        Ok(Held {
            expiry: row.get(0)?,
            has_waiters: row.get(1)?,
        })
    };
    select.query_row(values, held).optional()
}
