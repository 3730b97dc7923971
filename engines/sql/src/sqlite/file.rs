//! The file: where it is, how it is opened, its format, and what its errors mean to a person.

use std::fmt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fencelock_core::{BootInstant, Clock, Error, Limit, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// `fnlk`, in the header of our files.
const APPLICATION_ID: i64 = 0x666e_6c6b;
/// The format of the tables below. A file of a newer one is refused.
const FORMAT: i64 = 1;

const SCHEMA: &str = include_str!("schema.sql");

/// What an engine needs to open its file, again if it was replaced.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// The id of this run of the machine: rows written in another one are over.
    pub(super) boot: Arc<str>,
    pub(super) connect_timeout: Duration,
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
    pub(super) fn new(path: PathBuf, connect_timeout: Duration) -> Result<Self> {
        let shown = format!("sqlite:{}", path.display());
        let path = std::path::absolute(&path)
            .map_err(|error| Error::config(&shown, format!("the path cannot be used: {error}")))?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|error| {
            let why = "/proc/sys/kernel/random/boot_id tells since when this machine runs, and cannot be read";
            Error::config(&shown, format!("{why}: {error}"))
        })?;
        let boot = boot.trim().into();
        Ok(Self {
            path,
            boot,
            connect_timeout,
        })
    }

    /// Opens the file; makes it if there is none.
    pub(super) fn open(&self) -> Result<File> {
        let deadline = Clock::Boot.now() + self.connect_timeout;
        loop {
            match self.open_once(deadline) {
                // Changing to the write-ahead log does not wait for others who do the same; and the file may be replaced
                // just then.
                Err(error) if error.is_transient() && Clock::Boot.now() < deadline => {
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
        let boot: Option<String> = match pragma(connection, "user_version")? {
            0 => None,
            _ => Some(connection.query_row("SELECT boot FROM store", [], |row| row.get(0))?),
        };
        if boot.as_deref() == Some(&*self.boot) {
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
        // The time in microseconds outruns every counter, so the tokens of a file that was deleted, or that a loss of
        // power set back, are not given again.
        let seed = SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = seed.map_or(1, |time| i64::try_from(time.as_micros()).unwrap_or(1));
        match pragma(connection, "user_version")? {
            0 => {
                connection.execute_batch(SCHEMA)?;
                connection.pragma_update(None, "application_id", APPLICATION_ID)?;
                connection.pragma_update(None, "user_version", FORMAT)?;
                let store = "INSERT INTO store (id, token, boot) VALUES (1, ?1, ?2)";
                connection.execute(store, (seed, &*self.boot))?;
            }
            FORMAT => {
                let changed = "UPDATE store SET token = max(token, ?1), boot = ?2 WHERE boot <> ?2";
                if connection.execute(changed, (seed, &*self.boot))? > 0 {
                    connection.execute("DELETE FROM holders", [])?;
                    connection.execute("DELETE FROM waiters", [])?;
                }
            }
            // The check after this one says so.
            _newer => {}
        }
        Ok(())
    }

    fn check_format(&self, connection: &Connection) -> Result<()> {
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
    pub(super) fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        if let Some(kind) = network_file_system(&self.path) {
            limits.push(Limit {
                what: format!(
                    "the file is on {kind}: other machines do not share its locks and clocks with this one, and two may hold"
                ),
                change: "put the file on a local disk; for several machines use a server such as redis: or etcd:".into(),
            });
        }
        if offset_of_boot_clock() {
            limits.push(Limit {
                what: "this process is in a time namespace with a boot clock of its own: leases do not compare with those of others".into(),
                change: "run all users of the file in one time namespace".into(),
            });
        }
        limits
    }

    pub(super) fn gone(&self) -> Error {
        let why = "the file was deleted or replaced while it was opened";
        Error::unavailable(self, "open the file", why)
    }

    /// An error of SQLite in the words of this crate.
    pub(super) fn error(&self, action: &str, error: &rusqlite::Error) -> Error {
        let cause = error.to_string();
        let Some(code) = error.sqlite_error_code() else {
            let why = format!("{action}: {cause}");
            return Error::Internal {
                store: self.to_string(),
                why,
            };
        };
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                let why = "another process keeps the file locked for longer than this one waits (response-timeout, connect-timeout)";
                Error::unavailable(self, action, why)
            }
            ErrorCode::CannotOpen => self.cannot_open(action, cause),
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied => {
                let action = format!(
                    "{action}: this user needs the right to write the file and its directory"
                );
                Error::refused(self, action, cause)
            }
            ErrorCode::NotADatabase => Error::config(
                self,
                "the file is no SQLite database; name another one. It was left alone",
            ),
            ErrorCode::DatabaseCorrupt => {
                let why = "the file is damaged; when nothing uses it any more, delete it with its -wal and -shm, and it is made anew";
                Error::config(self, format!("{why} ({cause})"))
            }
            ErrorCode::DiskFull
            | ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed => Error::unavailable(self, action, cause),
            _ => {
                let why = format!("{action}: {cause}");
                Error::Internal {
                    store: self.to_string(),
                    why,
                }
            }
        }
    }

    /// SQLite does not say why; the file system does. (The file itself must not be opened and closed here: that would
    /// drop the locks that SQLite has on it in this process.)
    fn cannot_open(&self, action: &str, cause: String) -> Error {
        use std::io::ErrorKind;
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        let shown = directory.display();
        let why = match std::fs::metadata(directory) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let action = format!("{action}: this user may not look into {shown}");
                return Error::refused(self, action, cause);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format!("the directory {shown} does not exist; make it, or name another file")
            }
            Err(error) => format!("the directory {shown} cannot be used: {error}"),
            Ok(found) if !found.is_dir() => format!("{shown} is no directory; name another file"),
            Ok(_) if self.path.is_dir() => "the path is a directory; name a file in it".to_owned(),
            Ok(_) => {
                let write = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
                let denied = rustix::fs::access(directory, write).is_err();
                let exists = self.path.exists();
                if denied || exists {
                    let action = format!(
                        "{action}: this user needs the right to write the file and its directory {shown}"
                    );
                    return Error::refused(self, action, cause);
                }
                format!("the file cannot be made in {shown}: {cause}")
            }
        };
        Error::config(self, why)
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

fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// The application's id, the format's number, and the number of changes of the schema, in one snapshot.
fn header(connection: &Connection) -> rusqlite::Result<(i64, i64, i64)> {
    let snapshot = connection.unchecked_transaction()?;
    let read = |name| pragma(&snapshot, name);
    Ok((
        read("application_id")?,
        read("user_version")?,
        read("schema_version")?,
    ))
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// Waits for other processes with growing random naps until the deadline: a process that is unlucky again and again
/// is so with a vanishing chance, where SQLite's own fixed steps let the newest win.
fn wait_when_busy(connection: &mut Connection, deadline: &Arc<AtomicU64>) -> rusqlite::Result<()> {
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

/// The default file: `$XDG_STATE_HOME/fencelock/locks.db`, else below `~/.local/state`. Its directories are made.
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
    let directory = state.join("fencelock");
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&directory);
    made.map_err(|error| {
        let why = format!(
            "the directory {} of the default file cannot be made: {error}; name another file: sqlite:/PATH",
            directory.display()
        );
        Error::config("sqlite:", why)
    })?;
    Ok(directory.join("locks.db"))
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

/// Whether this process's boot clock is shifted against the machine's.
fn offset_of_boot_clock() -> bool {
    let Ok(offsets) = std::fs::read_to_string("/proc/self/timens_offsets") else {
        return false;
    };
    let boot = offsets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        matches!(name, "boottime" | "7").then(|| words.any(|word| word != "0"))
    });
    boot.unwrap_or(false)
}
