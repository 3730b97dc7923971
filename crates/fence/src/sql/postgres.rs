//! [`TableFence`] with `tokio-postgres`.

use fencelock_core::Sequencer;
use tokio_postgres::Transaction;

use super::TableFence;
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call it first in the transaction; roll that back if it is refused. The table must be
/// there ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors.
///
/// # Cancel safety
/// If dropped, roll the transaction back.
pub async fn pass(
    transaction: &Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let asked = async {
        transaction.batch_execute(&fence.mark(sequencer)).await?;
        let row = transaction.query_opt(&fence.select(sequencer), &[]).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
            .transpose()
    };
    let found = asked.await;
    let found = found.map_err(|error: tokio_postgres::Error| fence.failed(error))?;
    fence.judge(found, sequencer)
}
