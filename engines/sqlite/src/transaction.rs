//! What the work inside one transaction needs.

use fencelock_core::BootInstant;
use rusqlite::Connection;

use crate::entry::Entries;
use crate::file::File;
use crate::stored::Sql;
use crate::wake_up::{Address, WakeUp};

/// One transaction: a write, or a read in one snapshot.
pub(crate) struct Transaction<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) file: &'a File,
    pub(crate) now: BootInstant,
    /// Where this engine listens.
    pub(crate) address: Address,
    pub(crate) entries: &'a Entries,
    /// To be sent after the commit.
    pub(crate) wake_ups: Vec<WakeUp>,
}

impl Transaction<'_> {
    pub(crate) fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Sql<()> {
        self.connection.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }
}
