//! Opening the file for reading and writing: connect, prepare, refuse.

use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, ConfigPart, Error, Result};
use fencelock_sql::lease::CLAIM_WINDOW;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::file::{File, micros};
use crate::file_name;
use crate::stored::{self, APPLICATION_ID, FORMAT, Sql};
use crate::tokens;

/// How long a check that the file is still under its name stays valid. It takes this long to notice that a file in use was
/// replaced. Checking each time would cost a busy process a tenth of its time.
const BELIEVED: Duration = Duration::from_millis(10);

pub(crate) struct OpenFile {
    pub(crate) connection: Connection,
    identity: Identity,
    /// When the path last named this file.
    found: Cell<Option<BootInstant>>,
    deadline: Deadline,
}

/// Device and inode.
type Identity = (u64, u64);

/// Until when statements wait for other processes, in nanoseconds of the boot clock.
type Deadline = Arc<AtomicU64>;

impl OpenFile {
    /// Until when the next statements wait for other processes.
    pub(crate) fn wait_until(&self, deadline: BootInstant) {
        self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
    }

    /// Whether the path still names this file, or did a moment ago. An engine that kept using a deleted file would not see the
    /// locks of the processes that open the path later.
    pub(crate) fn is_still_at(&self, path: &Path) -> bool {
        let now = Clock::Boot.now();
        if (self.found.get()).is_some_and(|found| now.since(found) < BELIEVED) {
            return true;
        }
        let is_at = self.is_at(path);
        self.found.set(is_at.then_some(now));
        is_at
    }

    /// Whether the path names this file.
    fn is_at(&self, path: &Path) -> bool {
        identity(path) == Some(self.identity)
    }
}

impl File {
    /// Opens the file. Creates it if there is none.
    pub(crate) fn open(&self) -> Result<OpenFile> {
        let deadline = Clock::Boot.now() + self.config.connect_timeout;
        // SQLite does not wait for another process that switches to the write-ahead log, too. And the file may be replaced
        // at that moment.
        retry(deadline, || self.open_once(deadline))
    }

    fn open_once(&self, deadline: BootInstant) -> Result<OpenFile> {
        let path = &self.config.path;
        let explain = |error| self.error("opening the file", &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connect = || Connection::open_with_flags(path, flags).map_err(explain);
        // If the path names the same file before and after, that is the file which was opened. So a missing file is
        // created first.
        let before = match identity(path) {
            None => {
                drop(connect()?);
                identity(path)
            }
            found => found,
        };
        let mut connection = connect()?;
        let identity = identity(path).filter(|after| Some(*after) == before);
        let identity = identity.ok_or_else(|| self.replaced())?;
        // The name is only checked here: a process that opened the file before it got a second name uses the first one.
        self.check_name()?;
        let deadline = Arc::new(AtomicU64::new(deadline.as_nanos()));
        let set_up = self.set_up(&mut connection, &deadline);
        let open = OpenFile {
            connection,
            identity,
            found: Cell::new(None),
            deadline,
        };
        // If `set_up` saw another file, its result does not matter.
        if !open.is_at(path) {
            return Err(self.replaced());
        }
        set_up.map(|()| open)
    }

    fn set_up(&self, connection: &mut Connection, deadline: &Deadline) -> Result<()> {
        let explain = |error| self.error("opening the file", &error);
        wait_when_busy(connection, deadline).map_err(explain)?;
        connection.set_prepared_statement_cache_capacity(64);
        // Without this, SQLite prepares some statements again for each bound value.
        let stable = DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG;
        connection.set_db_config(stable, true).map_err(explain)?;
        self.check_format(connection)?;
        self.prepare(connection).map_err(explain)?;
        self.check_format(connection)
    }

    /// Configures the connection, creates the tables in an empty file, and deletes the rows of an earlier boot.
    fn prepare(&self, connection: &Connection) -> Sql<()> {
        // This only affects a new file. A commit writes whole pages, and changes one row in each.
        connection.pragma_update(None, "page_size", 1024)?;
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "normal")?;
        // The worker makes the checkpoints.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if stored::format(connection)? == FORMAT
            && stored::has_all_columns(connection)?
            && self.is_of_this_boot(connection)?
        {
            return Ok(());
        }
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let prepared = self.prepare_tables(connection);
        let end = if prepared.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = connection.execute_batch(end);
        prepared.and(ended)
    }

    fn prepare_tables(&self, connection: &Connection) -> Sql<()> {
        match stored::format(connection)? {
            0 => {
                let boot = self.boot.id().unwrap_or_default();
                let token = micros().saturating_add(tokens::HORIZON);
                stored::create_tables(connection, token, boot)
            }
            FORMAT => {
                if !stored::has_all_columns(connection)? {
                    stored::add_columns(connection)?;
                }
                if !self.is_of_this_boot(connection)? {
                    self.begin_boot(connection)?;
                }
                Ok(())
            }
            // The next `check_format` refuses it.
            _newer => Ok(()),
        }
    }

    /// Whether the file says that it was last opened in this boot. A process that does not know its boot looks for holders
    /// of another boot instead.
    fn is_of_this_boot(&self, connection: &Connection) -> Sql<bool> {
        let (boot, token) = tokens::last_opened(connection, &self.boot)?;
        self.saw_token(token);
        if self.boot.id().is_some() {
            return Ok(self.boot.is(&boot));
        }
        let is_over = self.boot.is_over(Clock::Boot.now());
        let sql = format!("SELECT NOT EXISTS (SELECT 1 FROM holders WHERE {is_over})");
        connection.query_row(&sql, [], |row| row.get(0))
    }

    /// Deletes the rows of an earlier boot.
    fn begin_boot(&self, connection: &Connection) -> Sql<()> {
        let now = Clock::Boot.now();
        let is_over = self.boot.is_over(now);
        connection.execute(&format!("DELETE FROM holders WHERE {is_over}"), [])?;
        // No waiter's row of this boot can expire later. One of an earlier boot that seems to be of this one expires soon.
        let longest = (now + CLAIM_WINDOW).as_nanos();
        let sql = format!("DELETE FROM waiters WHERE expiry > {longest}");
        connection.execute(&sql, [])?;
        // A process that does not know the boot id keeps the stored one, for processes that know it.
        if let Some(id) = self.boot.id() {
            connection.execute("UPDATE store SET boot = ?1", [id])?;
        }
        Ok(())
    }

    pub(crate) fn check_name(&self) -> Result<()> {
        match file_name::fault(&self.config.path) {
            Ok(None) => Ok(()),
            Ok(Some(fault)) => Err(Error::config(self, ConfigPart::Server, fault)),
            Err(_) => Err(self.replaced()),
        }
    }

    pub(crate) fn check_format(&self, connection: &Connection) -> Result<()> {
        let header = stored::header(connection);
        let header = header.map_err(|error| self.error("reading the file", &error))?;
        let why = match (header.application, header.format) {
            (APPLICATION_ID, FORMAT) => return Ok(()),
            (0, 0) if header.schema == 0 => return Ok(()),
            (APPLICATION_ID, newer) if newer > FORMAT => format!(
                "its format is {newer}, and this version of fencelock knows {FORMAT}; use a newer fencelock. \
                 The file was not changed"
            ),
            _ => {
                "it is an SQLite database of another program; name another file. It was not changed"
                    .to_owned()
            }
        };
        Err(Error::config(self, ConfigPart::Server, why))
    }
}

/// Repeats `attempt` while its error is retryable and the deadline has not passed.
pub(crate) fn retry<T>(deadline: BootInstant, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Err(error) if error.is_retryable() && Clock::Boot.now() < deadline => {
                std::thread::sleep(Duration::from_millis(1 + fastrand::u64(..10)));
            }
            other => return other,
        }
    }
}

/// Waits for other processes with growing random pauses until the deadline. SQLite's own pauses have fixed lengths, which
/// favour the newest process; with random ones no process has to wait forever.
pub(crate) fn wait_when_busy(connection: &mut Connection, deadline: &Deadline) -> Sql<()> {
    let deadline = Arc::clone(deadline);
    connection.busy_handler(Some(move |tries: i32| {
        let deadline = BootInstant::from_nanos(deadline.load(Ordering::Relaxed));
        let left = deadline.since(Clock::Boot.now());
        if left.is_zero() {
            return false;
        }
        let longest = 1000u64 << tries.clamp(0, 3);
        let pause = Duration::from_micros(longest / 2 + fastrand::u64(..longest));
        std::thread::sleep(pause.min(left));
        true
    }))
}

fn identity(path: &Path) -> Option<Identity> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
