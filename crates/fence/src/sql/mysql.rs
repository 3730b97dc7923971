//! [`TableFence`] with `mysql_async`.

use fencelock_core::Sequencer;
use mysql_async::Transaction;
use mysql_async::prelude::Queryable;

use super::{Operation, Operations, TableFence};
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call it first in the transaction; roll that back if it is refused. The table must be
/// there ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors: a deadlock between two new locks among them, after which the transaction is to be repeated.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
pub async fn pass(
    transaction: &mut Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let asked = async {
        transaction.query_drop(fence.mark(sequencer)).await?;
        transaction.query_first(fence.select(sequencer)).await
    };
    let found = asked.await;
    let found = found.map_err(|error: mysql_async::Error| fence.failed(error))?;
    fence.judge(found, sequencer)
}

/// Begins an operation: `None` if this is the first try, and its outcome if it was done before. Call it first in the
/// transaction, and before the fence; roll back if either refuses. The table must be there ([`Operations::create`]).
///
/// # Errors
/// Those of [`Operations::outcome`], and [`FenceError::Write`](crate::FenceError::Write) for the database's errors: a
/// deadlock among them, if several waited for a first try that was rolled back, after which the transaction is to be repeated.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
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

/// Keeps the outcome of the operation that this transaction has begun. Commit then.
///
/// # Errors
/// [`FenceError::Damaged`](crate::FenceError::Damaged) if it has not begun it, or has finished it;
/// [`FenceError::Write`](crate::FenceError::Write) for the database's errors.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
pub async fn finish(
    transaction: &mut Transaction<'_>,
    operations: &Operations,
    sequencer: &Sequencer,
    operation: &Operation,
    outcome: &str,
) -> Result<()> {
    let finish = operations.finish(sequencer, operation);
    let changed = transaction.exec_drop(finish, (outcome,)).await;
    changed.map_err(|error| operations.failed("keep an outcome", error))?;
    operations.finished(transaction.affected_rows(), operation)
}
