//! Withdrawing a claim: release, leave the queue, abandon.

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{ClaimId, LockName, Result};
use rusqlite::{OptionalExtension, params};

use crate::handle::{Handle, How};
use crate::job::Action;
use crate::rows::{leave_queue, read, wake_next};
use crate::stored::{Sql, duration_value, instant_value};
use crate::transaction::Transaction;

pub(crate) async fn withdraw(worker: &Handle, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    let action = Action::on("release", &claim.name);
    let claim = claim.clone();
    worker
        .run(How::SmallWrite, action, move |transaction| {
            leave(transaction, &claim, how)
        })
        .await
}

fn leave(transaction: &mut Transaction<'_>, claim: &Claim, how: Leave) -> Sql<Withdrawn> {
    transaction.entries.remove(claim.id);
    let name = &claim.name;
    let held = match how {
        Leave::Release => release(transaction, name, claim.id)?,
        Leave::Abandon => abandon(transaction, claim)?,
    };
    if let Some(expiry) = held {
        if how == Leave::Release || claim.lock_delay.is_zero() {
            wake_next(transaction, name)?;
        }
        return Ok(match expiry > instant_value(transaction.now) {
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

/// Deletes the hold. Returns its expiry.
fn release(transaction: &Transaction<'_>, name: &LockName, claim: ClaimId) -> Sql<Option<i64>> {
    let expiry = stored_expiry(transaction, name, claim)?;
    if expiry.is_some() {
        let sql = "DELETE FROM holders WHERE name = ?1 AND claim = ?2";
        transaction.execute(sql, params![name.as_str(), claim.as_bytes()])?;
    }
    Ok(expiry)
}

/// Lets the lock-delay run, but not beyond the expiry of the hold. Returns that expiry.
fn abandon(transaction: &Transaction<'_>, claim: &Claim) -> Sql<Option<i64>> {
    let expiry = stored_expiry(transaction, &claim.name, claim.id)?;
    let live = expiry.is_some_and(|expiry| expiry > instant_value(transaction.now));
    if claim.lock_delay.is_zero() || !live {
        return release(transaction, &claim.name, claim.id);
    }
    let sql = "UPDATE holders SET state = 'abandoned', expiry = min(expiry, ?3), lock_delay = ?4 \
               WHERE name = ?1 AND claim = ?2";
    let values = params![
        claim.name.as_str(),
        claim.id.as_bytes(),
        instant_value(transaction.now + claim.lock_delay),
        duration_value(claim.lock_delay),
    ];
    transaction.execute(sql, values)?;
    Ok(expiry)
}

/// A SELECT and a change together cost a fraction of a change with RETURNING, which SQLite runs through a temporary table.
fn stored_expiry(
    transaction: &Transaction<'_>,
    name: &LockName,
    claim: ClaimId,
) -> Sql<Option<i64>> {
    let sql = "SELECT expiry FROM holders WHERE name = ?1 AND claim = ?2";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let values = params![name.as_str(), claim.as_bytes()];
    select.query_row(values, |row| row.get(0)).optional()
}
