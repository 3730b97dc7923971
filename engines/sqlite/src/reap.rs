//! Removing the rows of ended processes.

use fencelock_core::{BootInstant, ClaimId, LockName};
use rusqlite::Connection;

use crate::rows::{leave_queue, read, wake_next};
use crate::stored::{Sql, instant_value};
use crate::transaction::Transaction;

/// Removes a waiter whose process has ended, and wakes the next one.
pub(crate) fn waiter(
    transaction: &mut Transaction<'_>,
    name: &LockName,
    claim: ClaimId,
) -> Sql<()> {
    let rows = read(transaction.connection, name)?;
    if leave_queue(transaction, name, claim, &rows)? {
        wake_next(transaction, name)?;
    }
    Ok(())
}

/// Whether any row of the file has expired.
pub(crate) fn has_expired(connection: &Connection, now: BootInstant) -> Sql<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE expiry <= ?1) \
               OR EXISTS (SELECT 1 FROM waiters WHERE expiry <= ?1)";
    let mut select = connection.prepare_cached(sql)?;
    select.query_row([instant_value(now)], |row| row.get(0))
}

/// Deletes every expired row of the file.
pub(crate) fn expired(transaction: &mut Transaction<'_>) -> Sql<()> {
    let now = instant_value(transaction.now);
    transaction.execute("DELETE FROM holders WHERE expiry <= ?1", [now])?;
    transaction.execute("DELETE FROM waiters WHERE expiry <= ?1", [now])
}
