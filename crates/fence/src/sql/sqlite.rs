//! [`TableFence`] with `rusqlite`.

use fencelock_core::Sequencer;
use rusqlite::{OptionalExtension, Transaction};

use super::TableFence;
use crate::error::Result;

/// Lets a holder pass, or refuses it. Call it first in the transaction, begun `IMMEDIATE`; drop that if it is refused. The
/// table must be there ([`TableFence::create`]).
///
/// # Errors
/// [`FenceError::Stale`](crate::FenceError::Stale) if the holder was superseded, [`FenceError::Write`](crate::FenceError::Write)
/// for the database's errors.
pub fn pass(
    transaction: &Transaction<'_>,
    fence: &TableFence,
    sequencer: &Sequencer,
) -> Result<()> {
    let asked = || {
        transaction.execute(&fence.mark(sequencer), ())?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let select = fence.select(sequencer);
        transaction.query_row(&select, (), row).optional()
    };
    let found = asked().map_err(|error| fence.failed(error))?;
    fence.judge(found, sequencer)
}
