//! The file: where it is, how it is opened, and its format.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{BootInstant, Clock, Error, Finding, Purpose, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::names;
use super::rows::CLAIM_WINDOW;
use super::run::Run;

/// `fnlk`, in the header of our files.
const APPLICATION_ID: i64 = 0x666e_6c6b;
/// The format of the tables below. A file of a newer one is refused.
const FORMAT: i64 = 1;

pub(super) const SCHEMA: &str = include_str!("schema.sql");
/// What the tables of format 1 did not have at first. Earlier versions do not miss it, and go on with the file.
const COLUMNS_SINCE: &str = "ALTER TABLE holders ADD COLUMN run TEXT;
    ALTER TABLE holders ADD COLUMN written INTEGER;
    ALTER TABLE waiters ADD COLUMN label TEXT;";

/// What an engine needs to open its file, again if it was replaced.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) run: Run,
    pub(super) connect_timeout: Duration,
    /// Nothing is written, and nothing is made.
    pub(super) inspect_only: bool,
    /// The highest token that this engine has met, whatever file the path named then. An old copy of the file may be put
    /// back at any time.
    highest: AtomicI64,
}

/// Shown in errors and as the engine's own `Display`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

/// The open file.
pub(super) struct File {
    pub(super) connection: Connection,
    identity: (u64, u64),
    patience: Arc<AtomicU64>,
}

impl Source {
    pub(super) fn new(
        path: PathBuf,
        connect_timeout: Duration,
        inspect_only: bool,
    ) -> Result<Self> {
        let shown = format!("sqlite:{}", path.display());
        let path = std::path::absolute(&path)
            .map_err(|error| Error::config(&shown, format!("the path cannot be used: {error}")))?;
        let run = Run::find().map_err(|why| Error::config(&shown, why))?;
        Ok(Self {
            path,
            run,
            connect_timeout,
            inspect_only,
            highest: AtomicI64::new(0),
        })
    }

    /// The last of `count` tokens to be drawn now, when `stored` is the last one drawn that the file knows of. It is above
    /// all that this engine has met, and not below the time in microseconds, which outruns every counter: so tokens go on
    /// increasing when the file was deleted, or an old copy of it put back, or a loss of power took the last commits.
    pub(super) fn next_token(&self, stored: i64, count: u32) -> i64 {
        let met = self
            .highest
            .fetch_max(stored, Ordering::Relaxed)
            .max(stored);
        let next = met.saturating_add(count.into()).max(micros());
        self.highest.fetch_max(next, Ordering::Relaxed);
        next
    }

    /// Opens the file; makes it if there is none.
    pub(super) fn open(&self) -> Result<File> {
        let deadline = Clock::Boot.now() + self.connect_timeout;
        loop {
            match self.open_once(deadline) {
                // Changing to the write-ahead log does not wait for others who do the same; and the file may be replaced
                // just then.
                Err(error) if error.is_retryable() && Clock::Boot.now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1 + fastrand::u64(..10)));
                }
                other => return other,
            }
        }
    }

    fn open_once(&self, deadline: BootInstant) -> Result<File> {
        let explain = |error| self.error("open the file", &error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connect = || Connection::open_with_flags(&self.path, flags).map_err(explain);
        // A file that is there before and after is the one that was opened; so one that is not is made first.
        let before = match identity(&self.path) {
            None => {
                drop(connect()?);
                identity(&self.path)
            }
            found => found,
        };
        let mut connection = connect()?;
        let identity = identity(&self.path).filter(|after| Some(*after) == before);
        let identity = identity.ok_or_else(|| self.gone())?;
        // Here only: whoever opened it before it had a second name has it by the first.
        self.check_names()?;
        let set_up = self.set_up(&mut connection, deadline);
        // Whatever another file had to say.
        if !is_at(&self.path, identity) {
            return Err(self.gone());
        }
        Ok(File {
            patience: set_up?,
            connection,
            identity,
        })
    }

    /// Answers until when the connection waits for others.
    fn set_up(&self, connection: &mut Connection, deadline: BootInstant) -> Result<Arc<AtomicU64>> {
        let explain = |error| self.error("open the file", &error);
        let patience = Arc::new(AtomicU64::new(deadline.as_nanos()));
        wait_when_busy(connection, &patience).map_err(explain)?;
        connection.set_prepared_statement_cache_capacity(64);
        // Otherwise some statements are prepared anew for each value that is bound.
        let stable = DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG;
        connection.set_db_config(stable, true).map_err(explain)?;
        self.check_format(connection)?;
        self.prepare(connection).map_err(explain)?;
        self.check_format(connection)?;
        Ok(patience)
    }

    /// Sets the connection up, makes the tables if the file is empty, and clears what is left from before the
    /// machine was started.
    fn prepare(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "normal")?;
        // The thread does it.
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        if pragma(connection, "user_version")? == FORMAT
            && has_all_columns(connection)?
            && self.is_of_this_run(connection)?
        {
            return Ok(());
        }
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let prepared = self.prepare_alone(connection);
        let end = if prepared.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = connection.execute_batch(end);
        prepared.and(ended)
    }

    fn prepare_alone(&self, connection: &Connection) -> rusqlite::Result<()> {
        match pragma(connection, "user_version")? {
            0 => {
                connection.execute_batch(SCHEMA)?;
                connection.pragma_update(None, "application_id", APPLICATION_ID)?;
                connection.pragma_update(None, "user_version", FORMAT)?;
                let store = "INSERT INTO store (id, token, boot) VALUES (1, ?1, ?2)";
                let boot = self.run.id().unwrap_or_default();
                connection.execute(store, (micros(), boot)).map(drop)
            }
            FORMAT => {
                if !has_all_columns(connection)? {
                    connection.execute_batch(COLUMNS_SINCE)?;
                }
                if !self.is_of_this_run(connection)? {
                    self.begin_run(connection)?;
                }
                Ok(())
            }
            // The check after this one says so.
            _newer => Ok(()),
        }
    }

    /// Whether all rows may be of this run of the machine, and the file says so.
    fn is_of_this_run(&self, connection: &Connection) -> rusqlite::Result<bool> {
        let sql = "SELECT boot, token FROM store";
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get(1)?));
        let (boot, token) = connection.query_row(sql, [], read)?;
        self.highest.fetch_max(token, Ordering::Relaxed);
        if self.run.id().is_some() {
            return Ok(self.run.is(&boot));
        }
        let is_over = self.run.is_over(Clock::Boot.now());
        let sql = format!("SELECT NOT EXISTS (SELECT 1 FROM holders WHERE {is_over})");
        connection.query_row(&sql, [], |row| row.get(0))
    }

    /// Clears what is left from before the machine was started.
    fn begin_run(&self, connection: &Connection) -> rusqlite::Result<()> {
        let now = Clock::Boot.now();
        let is_over = self.run.is_over(now);
        connection.execute(&format!("DELETE FROM holders WHERE {is_over}"), [])?;
        // No place in line stands for longer; those of before the start that seem to be of now lapse like any.
        let longest = (now + CLAIM_WINDOW).as_nanos();
        let sql = format!("DELETE FROM waiters WHERE expiry > {longest}");
        connection.execute(&sql, [])?;
        // Whoever does not know the id leaves the one that is there to those who do.
        if let Some(id) = self.run.id() {
            connection.execute("UPDATE store SET boot = ?1", [id])?;
        }
        Ok(())
    }

    pub(super) fn check_names(&self) -> Result<()> {
        match names::fault(&self.path) {
            Ok(None) => Ok(()),
            Ok(Some(fault)) => Err(Error::config(self, fault)),
            Err(_) => Err(self.gone()),
        }
    }

    pub(super) fn check_format(&self, connection: &Connection) -> Result<()> {
        let header = header(connection).map_err(|error| self.error("read the file", &error));
        let (application, format, tables) = header?;
        let why = match (application, format) {
            (APPLICATION_ID, FORMAT) => return Ok(()),
            (0, 0) if tables == 0 => return Ok(()),
            (APPLICATION_ID, newer) if newer > FORMAT => format!(
                "its format is {newer}, and this version of fencelock knows {FORMAT}; use a newer fencelock. \
                 The file was left alone"
            ),
            _ => "it is an SQLite database of another program; name a file of its own. It was left alone"
                .to_owned(),
        };
        Err(Error::config(self, why))
    }

    /// What stands between this file and correctness.
    pub(super) fn limits(&self) -> Vec<Finding> {
        let mut limits = Vec::new();
        if let Some(kind) = network_file_system(&self.path) {
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: format!(
                    "the file is on {kind}: other machines do not share its locks and clocks with this one, and two may hold"
                ),
                change: "put the file on a local disk; for several machines use a server such as redis: or etcd:".into(),
            });
        }
        limits
    }

    pub(super) fn gone(&self) -> Error {
        let why = "the file was deleted or replaced while it was opened";
        Error::unavailable(self, "open the file", why)
    }
}

impl File {
    /// Until when the next statements wait for other processes.
    pub(super) fn wait_until(&self, deadline: BootInstant) {
        self.patience.store(deadline.as_nanos(), Ordering::Relaxed);
    }

    /// Whether the path still names this file. One that was deleted under us would keep us apart from those who
    /// come later.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        is_at(path, self.identity)
    }
}

fn is_at(path: &Path, file: (u64, u64)) -> bool {
    identity(path) == Some(file)
}

pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// The application's id, the format's number, and the number of changes of the schema, in one snapshot.
pub(super) fn header(connection: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let snapshot = connection.unchecked_transaction()?;
    let read = |name| pragma(&snapshot, name);
    Ok((
        read("application_id")?,
        read("user_version")?,
        read("schema_version")?,
    ))
}

/// Whether the tables have [`COLUMNS_SINCE`].
pub(super) fn has_all_columns(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info('waiters') WHERE name = 'label')";
    connection.query_row(sql, [], |row| row.get(0))
}

/// The time, as tokens count it.
fn micros() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |time| i64::try_from(time.as_micros()).unwrap_or(1))
}

pub(super) fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// Waits for other processes with growing random naps until the deadline: a process that is unlucky again and again
/// is so with a vanishing chance, where SQLite's own fixed steps let the newest win.
pub(super) fn wait_when_busy(
    connection: &mut Connection,
    deadline: &Arc<AtomicU64>,
) -> rusqlite::Result<()> {
    let deadline = Arc::clone(deadline);
    connection.busy_handler(Some(move |tries: i32| {
        let deadline = BootInstant::from_nanos(deadline.load(Ordering::Relaxed));
        let left = deadline.since(Clock::Boot.now());
        if left.is_zero() {
            return false;
        }
        let most = 1000u64 << tries.clamp(0, 3);
        let nap = Duration::from_micros(most / 2 + fastrand::u64(..most));
        std::thread::sleep(nap.min(left));
        true
    }))
}

/// The default file: `$XDG_STATE_HOME/fencelock/locks.db`, else below `~/.local/state`.
pub(super) fn default_path() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    // The convention says that a relative path in XDG_STATE_HOME is to be ignored.
    let state = set("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.filter(|path| path.is_absolute());
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let Some(state) = state.or_else(home) else {
        let why = "neither XDG_STATE_HOME nor HOME is set, so there is no default file; name one: sqlite:/PATH";
        return Err(Error::config("sqlite:", why));
    };
    Ok(state.join("fencelock/locks.db"))
}

/// Makes the directories of the default file.
pub(super) fn make_default_directory(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(directory);
    made.map_err(|error| {
        let why = format!(
            "the directory {} of the default file cannot be made: {error}; name another file: sqlite:/PATH",
            directory.display()
        );
        Error::config("sqlite:", why)
    })
}

/// The kind of network file system that the file is on, if it is on one.
#[cfg(target_os = "linux")]
fn network_file_system(path: &Path) -> Option<&'static str> {
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // Of the type's many widths the lower 32 bits are the magic number.
    match kind as u32 {
        0x6969 => Some("NFS"),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9P"),
        0x6573_5546 => Some("a FUSE file system, which may be a network's"),
        0x00c3_6400 => Some("Ceph"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636f => Some("OCFS2"),
        0x4750_4653 => Some("GPFS"),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_path: &Path) -> Option<&'static str> {
    None
}
