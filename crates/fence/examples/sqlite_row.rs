//! A row in SQLite that refuses late holders: the marks are columns of the row, and the check is part of the `UPDATE`.
//!
//! `cargo run -p fencelock-fence --features sqlite --example sqlite_row -- app.db`

mod story;

use std::time::Duration;

use fencelock::Sequencer;
use fencelock_fence::sql::RowFence;
use rusqlite::{Connection, OptionalExtension, Row};
use story::{Ledger, Result};

struct Database {
    connection: Connection,
    fence: RowFence,
}

impl Database {
    fn open(path: &str) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS ledger (id INTEGER PRIMARY KEY, entry TEXT, {});
             INSERT OR IGNORE INTO ledger (id) VALUES (7)",
            RowFence::columns()
        ))?;
        let fence = RowFence::new("ledger")?;
        Ok(Self { connection, fence })
    }
}

impl Ledger for Database {
    async fn write(&self, holder: &Sequencer, text: &str) -> Result<()> {
        let update = self.fence.update("entry = ?1", "id = 7", holder);
        if self.connection.execute(&update, [text])? > 0 {
            return Ok(());
        }
        // No row was changed: find out who won.
        let marks = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let select = self.fence.select("id = 7");
        let found = self.connection.query_row(&select, [], marks).optional()?;
        Ok(self.fence.explain(found, holder)?)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = story::place()?;
    story::run(&Database::open(&place)?, &place).await
}
