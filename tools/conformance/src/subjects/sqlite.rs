//! SQLite: a file of its own for each case.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Dir, Failure, Result};
use rusqlite::{Connection, OpenFlags};

use crate::subject::{Store, Subject};

pub(crate) struct InFile;

#[async_trait]
impl Subject for InFile {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn claim_window(&self) -> Duration {
        Duration::from_secs(6)
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        Ok(Box::new(File(Dir::new("sqlite")?)))
    }
}

struct File(Dir);

impl File {
    fn path(&self) -> String {
        self.0.join("locks.db")
    }

    /// Every row of every table except `store` and `record`, which have rows for the whole store.
    fn rows(&self) -> rusqlite::Result<u64> {
        if !std::path::Path::new(&self.path()).exists() {
            return Ok(0);
        }
        let file = Connection::open_with_flags(self.path(), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        file.busy_timeout(Duration::from_secs(5))?;
        let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('store', 'record')";
        let mut tables = file.prepare(tables)?;
        let names = tables.query_map([], |row| row.get::<_, String>(0))?;
        let mut rows = 0;
        for name in names {
            let count = format!("SELECT count(*) FROM \"{}\"", name?);
            rows += u64::from(file.query_row(&count, [], |row| row.get::<_, u32>(0))?);
        }
        Ok(rows)
    }
}

#[async_trait]
impl Store for File {
    fn url(&self) -> String {
        format!("sqlite:{}", self.path())
    }

    async fn leftovers(&self) -> Result<u64> {
        self.rows()
            .map_err(|error| Failure::new(format!("{}: {error}", self.path())))
    }
}
