//! The rows of one lock: reading them, and the changes that several operations share.

use fencelock_core::{ClaimId, LockName, Tokens};
use fencelock_sql::lease::{Holder, Rows, Waiter};
use rusqlite::{Connection, params};

use crate::stored::{Sql, claim_id, instant, instant_value, mode, token};
use crate::transaction::Transaction;
use crate::wake_up::{Message, WakeUp};

pub(crate) fn read(connection: &Connection, name: &LockName) -> Sql<Rows> {
    let sql = "SELECT claim, mode, first, count, expiry, state = 'abandoned' FROM holders WHERE name = ?1";
    let mut holders = connection.prepare_cached(sql)?;
    let holders = holders.query_map([name.as_str()], |row| {
        Ok(Holder {
            claim: claim_id(row, 0)?,
            mode: mode(row, 1)?,
            tokens: Tokens::new(token(row, 2)?, row.get(3)?),
            expiry: instant(row, 4)?,
            abandoned: row.get(5)?,
        })
    })?;
    let holders = holders.collect::<Sql<Vec<_>>>()?;
    let queue = read_queue(connection, name)?;
    Ok(Rows { holders, queue })
}

fn read_queue(connection: &Connection, name: &LockName) -> Sql<Vec<Waiter>> {
    let sql =
        "SELECT claim, ticket, mode, expiry, bell FROM waiters WHERE name = ?1 ORDER BY ticket";
    let mut queue = connection.prepare_cached(sql)?;
    let queue = queue.query_map([name.as_str()], |row| {
        Ok(Waiter {
            claim: claim_id(row, 0)?,
            ticket: row.get(1)?,
            mode: mode(row, 2)?,
            expiry: instant(row, 3)?,
            address: row.get(4)?,
        })
    })?;
    queue.collect()
}

/// Takes the claim out of the queue. Returns whether it was there.
pub(crate) fn leave_queue(
    transaction: &Transaction<'_>,
    name: &LockName,
    claim: ClaimId,
    rows: &Rows,
) -> Sql<bool> {
    let Some(waiter) = rows.queue.iter().find(|waiter| waiter.claim == claim) else {
        return Ok(false);
    };
    transaction.entries.remove_waiting(claim);
    let sql = "DELETE FROM waiters WHERE name = ?1 AND ticket = ?2";
    transaction.execute(sql, params![name.as_str(), waiter.ticket])?;
    Ok(true)
}

/// Wakes the waiters that may hold now. They place their claims again. This also detects waiters whose process has ended.
pub(crate) fn wake_next(transaction: &mut Transaction<'_>, name: &LockName) -> Sql<()> {
    if read_queue(transaction.connection, name)?.is_empty() {
        return Ok(());
    }
    let rows = read(transaction.connection, name)?;
    for waiter in rows.next(transaction.now) {
        if let Some(to) = waiter.address.clone() {
            let message = Message::Turn(name.clone(), waiter.claim);
            transaction.wake_ups.push(WakeUp { to, message });
        }
    }
    Ok(())
}

/// Deletes the expired rows of a lock.
pub(crate) fn delete_expired(
    transaction: &Transaction<'_>,
    name: &LockName,
    rows: &Rows,
) -> Sql<()> {
    if !rows.has_expired(transaction.now) {
        return Ok(());
    }
    let values = params![name.as_str(), instant_value(transaction.now)];
    let holders = "DELETE FROM holders WHERE name = ?1 AND expiry <= ?2";
    transaction.execute(holders, values)?;
    let waiters = "DELETE FROM waiters WHERE name = ?1 AND expiry <= ?2";
    transaction.execute(waiters, values)
}
