//! Looking at the file without the right to write it, and without a trace. Each look opens the file anew and closes it.
//!
//! SQLite reads a file with a write-ahead log through the `-wal` and `-shm` beside it, which are there while somebody uses
//! the file, and makes them if they are not. Here they are only read. Where they are missing, nobody uses the file; it is
//! then read as one that does not change, and read again if it did.

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

use super::explain::beside;
use super::file::{SCHEMA, Source, default_path, has_all_columns, pragma, wait_when_busy};

/// Longer than a look takes.
const MARGIN: Duration = Duration::from_secs(60);

/// What changes with a file's content.
#[derive(PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    length: u64,
    modified: (i64, i64),
    /// The log and its index are there, so others have the file open.
    in_use: bool,
    log_is_empty: bool,
}

impl Source {
    /// Reads what `read` reads. If the file changed meanwhile in a way that may have shown, `read` is called again.
    pub(super) fn glance<T>(&self, mut read: impl FnMut(&Connection) -> Result<T>) -> Result<T> {
        let deadline = Clock::Boot.now() + self.connect_timeout;
        loop {
            match self.glance_once(deadline, &mut read) {
                Err(error) if error.is_retryable() && Clock::Boot.now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1 + fastrand::u64(..10)));
                }
                other => return other,
            }
        }
    }

    fn glance_once<T>(
        &self,
        deadline: BootInstant,
        read: &mut impl FnMut(&Connection) -> Result<T>,
    ) -> Result<T> {
        let explain = |error| self.error("look into the file", &error);
        let before = match self.stamp() {
            Ok(stamp) => stamp,
            Err(error) if self.may_be_made(&error) => return read(&empty().map_err(explain)?),
            Err(error) => return Err(self.cannot_open("look into the file", error.to_string())),
        };
        // SQLite would delete the log of an empty file.
        if before.length == 0 {
            return read(&empty().map_err(explain)?);
        }
        self.check_names()?;
        let opened = self.open_to_look(&before, deadline);
        let seen = opened.and_then(|connection| read(&connection));
        let changed = match self.stamp() {
            Ok(after) if before.in_use => seen.is_err() && !after.in_use,
            Ok(after) => after != before,
            Err(_) => true,
        };
        if changed { Err(self.gone()) } else { seen }
    }

    fn open_to_look(&self, found: &Stamp, deadline: BootInstant) -> Result<Connection> {
        let explain = |error| self.error("look into the file", &error);
        if !found.in_use && !found.log_is_empty {
            let why = "the file was not closed in good order, and only a process that may write it can open it; \
                       take any lock in it once, as a user who may write it";
            return Err(Error::unavailable(self, "look into the file", why));
        }
        let how = match found.in_use {
            true => "readonly_shm=1",
            false => "immutable=1",
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri(&self.path, how), flags);
        let mut connection = connection.map_err(explain)?;
        let patience = Arc::new(AtomicU64::new(deadline.as_nanos()));
        wait_when_busy(&mut connection, &patience).map_err(explain)?;
        self.check_format(&connection)?;
        if pragma(&connection, "user_version").map_err(explain)? == 0 {
            return empty().map_err(explain);
        }
        self.show_this_run(&connection).map_err(explain)?;
        Ok(connection)
    }

    /// Whether a normal opening would make the file: one that is not there yet holds nothing.
    fn may_be_made(&self, error: &std::io::Error) -> bool {
        let default = || default_path().is_ok_and(|default| default == self.path);
        error.kind() == ErrorKind::NotFound && (self.directory().is_dir() || default())
    }

    /// Hides the rows of other runs of the machine, and shows columns that the file does not have yet as empty ones.
    fn show_this_run(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "temp_store", "memory")?;
        let more = match has_all_columns(connection)? {
            true => ["", ""],
            false => [", NULL AS run, NULL AS written", ", NULL AS label"],
        };
        let boot: String =
            connection.query_row("SELECT boot FROM main.store", [], |row| row.get(0))?;
        let is_over = match self.run.is(&boot) {
            true => "FALSE".to_owned(),
            // Not what is renewed until it is read.
            false => self.run.is_over(Clock::Boot.now() + MARGIN),
        };
        let [holders, waiters] = more;
        connection.execute_batch(&format!(
            "CREATE TEMP VIEW holders AS SELECT * FROM (SELECT *{holders} FROM main.holders) WHERE NOT ({is_over});
             CREATE TEMP VIEW waiters AS SELECT *{waiters} FROM main.waiters;"
        ))
    }

    fn stamp(&self) -> std::io::Result<Stamp> {
        let path = std::fs::canonicalize(&self.path)?;
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

/// A store without a lock.
fn empty() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

/// The file as SQLite's URI, in which some bytes have a meaning.
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
