//! [`TableFence`] with `mysql_async`.

use fencelock_core::Sequencer;
use mysql_async::Transaction;
use mysql_async::prelude::Queryable;

use super::TableFence;
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
