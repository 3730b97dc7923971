//! [`TableFence`] and [`Operations`] with `mysql_async`.

use fencelock_core::Sequencer;
use mysql_async::Transaction;
use mysql_async::prelude::Queryable;

use super::operations::{Operation, Operations};
use super::table_fence::TableFence;
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call this first in the transaction, and roll back if it fails. The table must exist
/// ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors. After a deadlock, which two new locks may cause, repeat the transaction.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
///
/// ```no_run
/// # use fencelock_fence::sql::*;
/// # use mysql_async::prelude::Queryable;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// # let mut connection = mysql_async::Conn::from_url("mysql://localhost/bank").await?;
/// let fence = TableFence::new(Dialect::Mysql);
/// let mut transaction = connection.start_transaction(Default::default()).await?;
/// mysql::pass(&mut transaction, &fence, &holder).await?;
/// transaction.query_drop("UPDATE ledger SET balance = balance - 10").await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn pass(
    transaction: &mut Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let queried = async {
        transaction.query_drop(fence.mark(sequencer)).await?;
        transaction.query_first(fence.select(sequencer)).await
    };
    let found = queried.await;
    let found = found.map_err(|error: mysql_async::Error| fence.failed(error))?;
    fence.judge(found, sequencer)
}

/// Begins an operation. Returns `None` if this is the first attempt, and the outcome if the operation was done before. Call
/// this first in the transaction, before the fence, and roll back if either fails. The table must exist
/// ([`Operations::create`]).
///
/// # Errors
/// Those of [`Operations::outcome`], and [`FenceError::Write`](crate::FenceError::Write) for the database's errors. After
/// a deadlock, which may occur if several waited for a first attempt that was rolled back, repeat the transaction.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
///
/// ```no_run
/// # use fencelock_fence::sql::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// # let mut connection = mysql_async::Conn::from_url("mysql://localhost/bank").await?;
/// let (operations, pay) = (Operations::new(Dialect::Mysql), Operation::new("pay-4711")?);
/// let mut transaction = connection.start_transaction(Default::default()).await?;
/// if let Some(outcome) = mysql::begin(&mut transaction, &operations, &holder, &pay).await? {
///     println!("done before: {outcome}");
/// } else {
///     // … passes the fence and writes …
///     mysql::finish(&mut transaction, &operations, &holder, &pay, "paid").await?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn begin(
    transaction: &mut Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
) -> Result<Option<String>> {
    let failed = |error| operations.failed("begin an operation", error);
    let begin = operations.begin(sequencer, operation);
    transaction.query_drop(begin).await.map_err(failed)?;
    if transaction.affected_rows() == 1 {
        return Ok(None);
    }
    let select = operations.select(sequencer, operation);
    let found = transaction.query_first(select).await.map_err(failed)?;
    operations.outcome(found, operation).map(Some)
}

/// Stores the outcome of the operation that this transaction has begun. Then commit.
///
/// # Errors
/// [`FenceError::Damaged`](crate::FenceError::Damaged) if the transaction has not begun it, or has finished it;
/// [`FenceError::Write`](crate::FenceError::Write) for the database's errors.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
///
/// See [`begin`].
pub async fn finish(
    transaction: &mut Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
    outcome: &str,
) -> Result<()> {
    let finish = operations.finish(sequencer, operation);
    let changed = transaction.exec_drop(finish, (outcome,)).await;
    changed.map_err(|error| operations.failed("store an outcome", error))?;
    operations.finished(transaction.affected_rows(), operation)
}
