//! [`TableFence`] and [`Operations`] with `rusqlite`.

use fencelock_core::Sequencer;
use rusqlite::{OptionalExtension, Transaction};

use super::operations::{Operation, Operations};
use super::table_fence::TableFence;
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call this first in an `IMMEDIATE` transaction, and drop the transaction if it fails.
/// The table must exist ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors.
///
/// ```
/// # use fencelock_fence::sql::{Dialect, TableFence, sqlite};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use rusqlite::TransactionBehavior::Immediate;
/// # let mut database = rusqlite::Connection::open_in_memory()?;
/// # database.execute_batch("CREATE TABLE ledger (balance INTEGER)")?;
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let fence = TableFence::new(Dialect::Sqlite);
/// database.execute_batch(&fence.create())?;
/// let transaction = database.transaction_with_behavior(Immediate)?;
/// sqlite::pass(&transaction, &fence, &holder)?;
/// transaction.execute("UPDATE ledger SET balance = balance - 10", ())?;
/// transaction.commit()?;
/// # Ok(())
/// # }
/// ```
pub fn pass(
    transaction: &Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let queried = || {
        transaction.execute(&fence.mark(sequencer), ())?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let select = fence.select(sequencer);
        transaction.query_row(&select, (), row).optional()
    };
    let found = queried().map_err(|error| fence.failed(error))?;
    fence.judge(found, sequencer)
}

/// Begins an operation. Returns `None` if this is the first attempt, and the outcome if the operation was done before. Call
/// this first in an `IMMEDIATE` transaction, before the fence, and drop the transaction if either fails. The table must exist
/// ([`Operations::create`]).
///
/// ```
/// # use fencelock_fence::sql::{Dialect, Operation, Operations, TableFence, sqlite};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use rusqlite::TransactionBehavior::Immediate;
/// # let mut database = rusqlite::Connection::open_in_memory()?;
/// # database.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (100)")?;
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:account".parse()?;
/// let fence = TableFence::new(Dialect::Sqlite);
/// let operations = Operations::new(Dialect::Sqlite);
/// database.execute_batch(&fence.create())?;
/// database.execute_batch(&operations.create())?;
///
/// let mut pay = |operation: &Operation| -> Result<String, Box<dyn std::error::Error>> {
///     let transaction = database.transaction_with_behavior(Immediate)?;
///     if let Some(outcome) = sqlite::begin(&transaction, &operations, &holder, operation)? {
///         return Ok(outcome);
///     }
///     sqlite::pass(&transaction, &fence, &holder)?;
///     transaction.execute("UPDATE account SET balance = balance - 10", ())?;
///     let balance = transaction.query_row("SELECT balance FROM account", (), |row| row.get(0));
///     let outcome = format!("{} are left", balance.map(|balance: i64| balance)?);
///     sqlite::finish(&transaction, &operations, &holder, operation, &outcome)?;
///     transaction.commit()?;
///     Ok(outcome)
/// };
/// let operation = Operation::new("pay-4711")?;
/// assert_eq!(pay(&operation)?, "90 are left");
/// assert_eq!(pay(&operation)?, "90 are left");
/// assert_eq!(pay(&Operation::new("pay-4712")?)?, "80 are left");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of [`Operations::outcome`], and [`FenceError::Write`](crate::FenceError::Write) for the database's errors.
pub fn begin(
    transaction: &Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
) -> Result<Option<String>> {
    let failed = |error| operations.failed("begin an operation", error);
    let begin = operations.begin(sequencer, operation);
    if transaction.execute(&begin, ()).map_err(failed)? == 1 {
        return Ok(None);
    }
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let select = operations.select(sequencer, operation);
    let found = transaction.query_row(&select, (), row).optional();
    operations
        .outcome(found.map_err(failed)?, operation)
        .map(Some)
}

/// Stores the outcome of the operation that this transaction has begun. Then commit.
///
/// # Errors
/// [`FenceError::Damaged`](crate::FenceError::Damaged) if the transaction has not begun it, or has finished it;
/// [`FenceError::Write`](crate::FenceError::Write) for the database's errors.
///
/// See [`begin`].
pub fn finish(
    transaction: &Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
    outcome: &str,
) -> Result<()> {
    let finish = operations.finish(sequencer, operation);
    let changed = transaction.execute(&finish, [outcome]);
    let changed = changed.map_err(|error| operations.failed("store an outcome", error))?;
    operations.finished(changed as u64, operation)
}
