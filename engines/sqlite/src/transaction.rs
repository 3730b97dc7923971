//! What the work inside one transaction needs.

use fencelock_core::{BootInstant, Clock};
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
    /// The address at which this engine listens.
    pub(crate) address: Address,
    pub(crate) entries: &'a Entries,
    /// The last token that it drew by the clock.
    pub(crate) drawn: Option<Drawn>,
    /// To be sent after the commit.
    pub(crate) wake_ups: Vec<WakeUp>,
}

impl Transaction<'_> {
    pub(crate) fn execute(&self, sql: &str, values: impl rusqlite::Params) -> Sql<()> {
        self.connection.prepare_cached(sql)?.execute(values)?;
        Ok(())
    }
}

/// The last token that a transaction drew by the clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) token: i64,
    /// If this transaction does not end before this instant, the next one draws a later token.
    pub(crate) ends_from: BootInstant,
}

impl Drawn {
    /// Waits for a few microseconds at most. Usually the clock is there already.
    pub(crate) fn pass(self) {
        while Clock::Boot.now() < self.ends_from {
            std::hint::spin_loop();
        }
    }
}
