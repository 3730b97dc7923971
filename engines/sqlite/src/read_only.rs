//! Reading the file without the right to write it, and without writing anything. Each read opens the file and closes it.
//!
//! SQLite reads a file with a write-ahead log through the `-wal` and `-shm` beside it. They exist while a process uses the
//! file, and SQLite creates them if they are missing. This module only reads them. If they are missing, no process uses the
//! file. Then it is read as a file that does not change, and read again if it did change.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, Error, Result};
use rusqlite::{Connection, OpenFlags};

use crate::config::default_path;
use crate::connection::{retry, wait_when_busy};
use crate::file::File;
use crate::file_name::beside;
use crate::stored::{self, SCHEMA, Sql};

/// Longer than a read takes.
const MARGIN: Duration = Duration::from_secs(60);

/// What changes with the content of a file.
#[derive(PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    /// Whether the log and its index exist, because a process has the file open.
    in_use: bool,
    log_is_empty: bool,
}

impl File {
    /// Calls `read` on the file, and again if the file changed meanwhile in a way that `read` may have seen.
    pub(crate) fn read_only<T>(&self, mut read: impl FnMut(&Connection) -> Result<T>) -> Result<T> {
        let deadline = Clock::Boot.now() + self.config.connect_timeout;
        retry(deadline, || self.read_only_once(deadline, &mut read))
    }

    fn read_only_once<T>(
        &self,
        deadline: BootInstant,
        read: &mut impl FnMut(&Connection) -> Result<T>,
    ) -> Result<T> {
        let explain = |error| self.error("reading the file", &error);
        let before = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) if self.may_be_created(&error) => return read(&empty().map_err(explain)?),
            Err(error) => return Err(self.cannot_open("reading the file", error.to_string())),
        };
        // SQLite would delete the log of an empty file.
        if before.length == 0 {
            return read(&empty().map_err(explain)?);
        }
        self.check_name()?;
        let opened = self.open_read_only(&before, deadline);
        let seen = opened.and_then(|connection| read(&connection));
        let changed = match self.stamp() {
            Ok(after) if before.in_use => seen.is_err() && !after.in_use,
            Ok(after) => after != before,
            Err(_) => true,
        };
        if changed { Err(self.replaced()) } else { seen }
    }

    fn open_read_only(&self, found: &Stamp, deadline: BootInstant) -> Result<Connection> {
        let explain = |error| self.error("reading the file", &error);
        if !found.in_use && !found.log_is_empty {
            let why = "the file was not closed properly, and only a process that may write it can open it; \
                       take any lock in it once, as a user who may write it";
            return Err(Error::unavailable(self, "reading the file", why));
        }
        let how = match found.in_use {
            true => "readonly_shm=1",
            false => "immutable=1",
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri(&self.config.path, how), flags);
        let mut connection = connection.map_err(explain)?;
        let deadline = Arc::new(AtomicU64::new(deadline.as_nanos()));
        wait_when_busy(&mut connection, &deadline).map_err(explain)?;
        self.check_format(&connection)?;
        if stored::format(&connection).map_err(explain)? == 0 {
            return empty().map_err(explain);
        }
        self.hide_other_boots(&connection).map_err(explain)?;
        Ok(connection)
    }

    /// Whether opening for writing would create the file. A file that does not exist yet has no locks.
    fn may_be_created(&self, error: &std::io::Error) -> bool {
        let default = || default_path().is_ok_and(|default| default == self.config.path);
        error.kind() == ErrorKind::NotFound && (self.config.directory().is_dir() || default())
    }

    /// Hides the holders of other boots, and shows columns that the file does not have yet as empty.
    fn hide_other_boots(&self, connection: &Connection) -> Sql<()> {
        connection.pragma_update(None, "temp_store", "memory")?;
        let missing = |table: &str, columns: &[&str]| -> Sql<String> {
            let mut empty = String::new();
            for column in columns {
                if !stored::has_column(connection, table, column)? {
                    empty += &format!(", NULL AS {column}");
                }
            }
            Ok(empty)
        };
        let holders = missing("holders", &["run", "written"])?;
        let waiters = missing("waiters", &["label"])?;
        let boot: String =
            connection.query_row("SELECT boot FROM main.store", [], |row| row.get(0))?;
        let is_over = match self.boot.is(&boot) {
            true => "FALSE".to_owned(),
            // With a margin, for rows that are renewed before they are read.
            false => self.boot.is_over(Clock::Boot.now() + MARGIN),
        };
        connection.execute_batch(&format!(
            "CREATE TEMP VIEW holders AS SELECT * FROM (SELECT *{holders} FROM main.holders) WHERE NOT ({is_over});
             CREATE TEMP VIEW waiters AS SELECT *{waiters} FROM main.waiters;"
        ))
    }

    fn stamp(&self) -> std::io::Result<Stamp> {
        let path = std::fs::canonicalize(&self.config.path)?;
        let found = std::fs::metadata(&path)?;
        let log = std::fs::metadata(beside(&path, "-wal")).ok();
        Ok(Stamp {
            file: (found.dev(), found.ino()),
            length: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            in_use: log.is_some() && beside(&path, "-shm").exists(),
            log_is_empty: log.is_none_or(|log| log.len() == 0),
        })
    }
}

/// A store without locks.
fn empty() -> Sql<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

/// The file as a URI of SQLite, in which some bytes must be encoded.
fn uri(path: &Path, how: &str) -> OsString {
    let mut uri = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' | b'?' | b'#' => uri.extend_from_slice(format!("%{byte:02x}").as_bytes()),
            plain => uri.push(*plain),
        }
    }
    uri.extend_from_slice(b"?");
    uri.extend_from_slice(how.as_bytes());
    OsString::from_vec(uri)
}
