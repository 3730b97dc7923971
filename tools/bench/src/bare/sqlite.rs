//! A lock on SQLite without a library: a row with a unique name, inserted and deleted, each in its own transaction.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock::{BootInstant, Clock, Result, StoreUrl};
use rusqlite::{Connection, TransactionBehavior, params};

use super::failed;

/// A file next to the store's.
#[derive(Clone)]
pub(crate) struct BareSqlite {
    path: PathBuf,
}

impl BareSqlite {
    /// A fresh table in a file next to the one that `url` names, on the same disk.
    pub(crate) fn open(url: &str) -> Result<Self> {
        let parts = StoreUrl::parse(url)?;
        if parts.path.is_empty() {
            return Err(
                parts.refuse("name a file, so that the file of the baseline can be next to it")
            );
        }
        let path = Path::new(&parts.path).with_extension("bare-bench");
        let this = Self { path };
        this.connect()?;
        Ok(this)
    }

    fn connect(&self) -> Result<Connection> {
        let connect = || {
            let connection = Connection::open(&self.path)?;
            connection.busy_timeout(Duration::from_secs(10))?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS lock (name TEXT PRIMARY KEY, value TEXT NOT NULL, ends INTEGER NOT NULL) \
                 WITHOUT ROWID",
            )?;
            Ok(connection)
        };
        connect().map_err(|error: rusqlite::Error| failed("the bare SQLite client", error))
    }

    /// Locks `names` in turn until `until`, with a connection and a thread of its own. Returns the number of pairs.
    pub(crate) async fn pairs(&self, names: &[String], until: BootInstant) -> Result<u64> {
        let (this, names) = (self.clone(), names.to_vec());
        let run = move || {
            let mut connection = this.connect()?;
            let run = pairs(&mut connection, &names, until);
            run.map_err(|error| failed("the bare SQLite client", error))
        };
        let joined = tokio::task::spawn_blocking(run).await;
        joined.map_err(|error| failed("the bare SQLite client", error))?
    }

    /// Removes the file.
    pub(crate) fn remove(&self) {
        for suffix in ["", "-wal", "-shm"] {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            // Fails only if there is no file.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn pairs(
    connection: &mut Connection,
    names: &[String],
    until: BootInstant,
) -> rusqlite::Result<u64> {
    let value = format!("bare:{:032x}", Clock::Boot.now().as_nanos());
    let mut pairs = 0;
    for name in names.iter().cycle() {
        if Clock::Boot.now() >= until {
            break;
        }
        let take = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        take.prepare_cached("INSERT INTO lock (name, value, ends) VALUES (?1, ?2, ?3)")?
            .execute(params![name, value, 30_000])?;
        take.commit()?;
        let release = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        release
            .prepare_cached("DELETE FROM lock WHERE name = ?1 AND value = ?2")?
            .execute(params![name, value])?;
        release.commit()?;
        pairs += 1;
    }
    Ok(pairs)
}
