//! [`TableFence`] and [`Operations`] with `tokio-postgres`.

use fencelock_core::Sequencer;
use tokio_postgres::Transaction;

use super::operations::{Operation, Operations};
use super::table_fence::TableFence;
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call this first in the transaction, and roll back if it fails. The table must exist
/// ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
///
/// ```no_run
/// # use fencelock_fence::sql::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// # let (mut client, connection) = tokio_postgres::connect("host=localhost", tokio_postgres::NoTls).await?;
/// # tokio::spawn(connection);
/// let fence = TableFence::new(Dialect::Postgres);
/// let transaction = client.transaction().await?;
/// postgres::pass(&transaction, &fence, &holder).await?;
/// transaction.execute("UPDATE ledger SET balance = balance - 10", &[]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn pass(
    transaction: &Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let queried = async {
        transaction.batch_execute(&fence.mark(sequencer)).await?;
        let row = transaction.query_opt(&fence.select(sequencer), &[]).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
            .transpose()
    };
    let found = queried.await;
    let found = found.map_err(|error: tokio_postgres::Error| fence.failed(error))?;
    fence.judge(found, sequencer)
}

/// Begins an operation. Returns `None` if this is the first attempt, and the outcome if the operation was done before. Call
/// this first in the transaction, before the fence, and roll back if either fails. The table must exist
/// ([`Operations::create`]).
///
/// # Errors
/// Those of [`Operations::outcome`], and [`FenceError::Write`](crate::FenceError::Write) for the database's errors.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
///
/// ```no_run
/// # use fencelock_fence::sql::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// # let (mut client, connection) = tokio_postgres::connect("host=localhost", tokio_postgres::NoTls).await?;
/// # tokio::spawn(connection);
/// let (operations, pay) = (Operations::new(Dialect::Postgres), Operation::new("pay-4711")?);
/// let transaction = client.transaction().await?;
/// if let Some(outcome) = postgres::begin(&transaction, &operations, &holder, &pay).await? {
///     println!("done before: {outcome}");
/// } else {
///     // … passes the fence and writes …
///     postgres::finish(&transaction, &operations, &holder, &pay, "paid").await?;
/// }
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
pub async fn begin(
    transaction: &Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
) -> Result<Option<String>> {
    let failed = |error| operations.failed("begin an operation", error);
    let begin = operations.begin(sequencer, operation);
    if transaction.execute(&begin, &[]).await.map_err(failed)? == 1 {
        return Ok(None);
    }
    let select = operations.select(sequencer, operation);
    let row = transaction.query_opt(&select, &[]).await.map_err(failed)?;
    let found = row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let found = found.transpose().map_err(failed)?;
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
    transaction: &Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
    outcome: &str,
) -> Result<()> {
    let finish = operations.finish(sequencer, operation);
    let changed = transaction.execute(&finish, &[&outcome]).await;
    let changed = changed.map_err(|error| operations.failed("store an outcome", error))?;
    operations.finished(changed, operation)
}
