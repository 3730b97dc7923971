//! What SQLite's errors mean to a person, and what to do. SQLite often does not say why; the file system does.
//!
//! (The file itself must not be opened and closed here: that would drop the locks that SQLite has on it in this process.)

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fencelock_core::Error;
use rusqlite::ErrorCode;

use super::file::Source;

/// With less than this left, SQLite may not be able to write a transaction.
const FULL: u64 = 64 * 1024;

impl Source {
    /// An error of SQLite in the words of this crate.
    pub(super) fn error(&self, action: &str, error: &rusqlite::Error) -> Error {
        let cause = error.to_string();
        let internal = |cause| Error::Internal {
            store: self.to_string(),
            why: format!("{action}: {cause}"),
        };
        let Some(code) = error.sqlite_error_code() else {
            return internal(cause);
        };
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                Error::unavailable(self, action, self.who_has_it_locked())
            }
            ErrorCode::CannotOpen => self.cannot_open(action, cause),
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied => self.no_right(action, cause),
            ErrorCode::NotADatabase => Error::config(
                self,
                "the file is no SQLite database; name another one. It was left alone",
            ),
            ErrorCode::DatabaseCorrupt => {
                let why = "the file is damaged; when nothing uses it any more, delete it with its -wal and -shm, and it is made anew";
                Error::config(self, format!("{why} ({cause})"))
            }
            ErrorCode::DiskFull => {
                let what = self.what_is_full().unwrap_or("the disk or a quota is full");
                self.full(action, what, &cause)
            }
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed => match self.what_is_full() {
                Some(what) => self.full(action, what, &cause),
                None => Error::unavailable(self, action, cause),
            },
            _ => internal(cause),
        }
    }

    fn no_right(&self, action: &str, cause: String) -> Error {
        let right = if self.inspect_only {
            "this user needs the right to read the file and the -wal and -shm beside it".to_owned()
        } else {
            let directory = self.directory().display();
            format!("this user needs the right to write the file and its directory {directory}")
        };
        Error::refused(self, format!("{action}: {right}"), cause)
    }

    pub(super) fn cannot_open(&self, action: &str, cause: String) -> Error {
        let directory = self.directory();
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
                if let Some(what) = self.what_is_full().filter(|_| !denied) {
                    return self.full(action, what, &cause);
                }
                if denied || self.path.exists() {
                    return self.no_right(action, cause);
                }
                format!("the file cannot be made in {shown}: {cause}")
            }
        };
        Error::config(self, why)
    }

    fn full(&self, action: &str, what: &str, cause: &str) -> Error {
        let directory = self.directory().display();
        let why = format!(
            "{what}, so no lock can be taken, renewed or given back; free some space for {directory} ({cause})"
        );
        Error::unavailable(self, action, why)
    }

    /// What the file system has run out of, if of anything. A quota is not seen here.
    fn what_is_full(&self) -> Option<&'static str> {
        let found = rustix::fs::statvfs(&self.path);
        let found = found.or_else(|_| rustix::fs::statvfs(self.directory()));
        let found = found.ok()?;
        if found.f_bavail.saturating_mul(found.f_frsize) < FULL {
            return Some("the disk is full");
        }
        let counted = found.f_files > 0;
        (counted && found.f_favail == 0).then_some("the disk has no inode left")
    }

    /// The process that keeps the file locked, as far as the kernel tells.
    fn who_has_it_locked(&self) -> String {
        let waited = "for longer than this one waits (response-timeout, connect-timeout)";
        match self.locked_by() {
            Some(pid) => format!("{} has kept the file locked {waited}", described(pid)),
            None => format!(
                "another process has kept the file locked {waited}; look for one that is stopped or hangs in the middle \
                 of a transaction: fuser -v {}",
                self.path.display()
            ),
        }
    }

    /// The process that has the file locked for writing.
    fn locked_by(&self) -> Option<u32> {
        let path = std::fs::canonicalize(&self.path).ok()?;
        // Bytes of -shm that whoever writes, checkpoints or recovers has locked; bytes of the file for other changes.
        let places = [
            (beside(&path, "-shm"), 120..=122),
            (path, 0x4000_0000..=u64::MAX),
        ];
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        places.into_iter().find_map(|(path, bytes)| {
            let file = std::fs::metadata(path).ok()?;
            let mut lines = locks.lines();
            lines.find_map(|line| {
                let (pid, first) = write_lock(line, &file)?;
                bytes.contains(&first).then_some(pid)
            })
        })
    }

    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

/// The path of a file that SQLite keeps beside the file.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The process and the first byte of a write lock on this file, from a line of `/proc/locks`:
/// `1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 120 120`.
fn write_lock(line: &str, file: &Metadata) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    if (words.next()?, words.next()?, words.next()?) != ("POSIX", "ADVISORY", "WRITE") {
        return None;
    }
    let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
    let device = file.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if words.next()? != format!("{major:02x}:{minor:02x}:{}", file.ino()) {
        return None;
    }
    Some((pid, words.next()?.parse().ok()?))
}

/// A process as a person finds it, and what it does.
fn described(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may have anything in it.
    let state = state.rsplit(") ").next().unwrap_or_default();
    let name = match name.trim() {
        "" => String::new(),
        name => format!(" ({name})"),
    };
    let does = if state.starts_with(['T', 't']) {
        format!(", which is stopped (kill -CONT {pid} lets it go on),")
    } else {
        String::new()
    };
    format!("process {pid}{name}{does}")
}
