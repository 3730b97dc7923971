//! SQLite's errors by meaning, and what to do. SQLite often does not say the reason; the file system shows it.
//!
//! The file itself must not be opened and closed here: that would drop the locks that SQLite has on it in this process.

use std::io::ErrorKind;

use fencelock_core::{ConfigPart, Error};
use rusqlite::ErrorCode;

use crate::blocker;
use crate::file::File;

/// With less space left, SQLite may be unable to write a transaction.
const LEAST_SPACE: u64 = 64 * 1024;

impl File {
    /// The meaning of an error of SQLite.
    pub(crate) fn error(&self, action: &str, error: &rusqlite::Error) -> Error {
        let cause = error.to_string();
        let internal = |cause| Error::internal(self, format!("{action}: {cause}"));
        let Some(code) = error.sqlite_error_code() else {
            return internal(cause);
        };
        match code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                Error::unavailable(self, action, blocker::describe(&self.config.path))
            }
            ErrorCode::CannotOpen => self.cannot_open(action, cause),
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied => self.no_permission(action, cause),
            ErrorCode::NotADatabase => Error::config(
                self,
                ConfigPart::Server,
                "the file is not an SQLite database; name another one. It was not changed",
            ),
            ErrorCode::DatabaseCorrupt => {
                let why = "the file is damaged; when no process uses it any more, delete it with its -wal and -shm, and a new one is created";
                Error::config(self, ConfigPart::Server, format!("{why} ({cause})"))
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

    fn no_permission(&self, action: &str, cause: String) -> Error {
        let right = if self.config.inspect_only {
            "this user needs the right to read the file and the -wal and -shm beside it".to_owned()
        } else {
            let directory = self.config.directory().display();
            format!("this user needs the right to write the file and its directory {directory}")
        };
        Error::refused(self, format!("{action}: {right}"), cause)
    }

    pub(crate) fn cannot_open(&self, action: &str, cause: String) -> Error {
        let directory = self.config.directory();
        let shown = directory.display();
        let why = match std::fs::metadata(directory) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let action =
                    format!("{action}: this user needs the right to enter the directory {shown}");
                return Error::refused(self, action, cause);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                format!("the directory {shown} does not exist; create it, or name another file")
            }
            Err(error) => {
                format!("the directory {shown} cannot be used: {error}; name another file")
            }
            Ok(found) if !found.is_dir() => {
                format!("{shown} is not a directory; name another file")
            }
            Ok(_) if self.config.path.is_dir() => {
                "the path is a directory; name a file in it".to_owned()
            }
            Ok(_) => {
                let write = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
                let denied = rustix::fs::access(directory, write).is_err();
                if let Some(what) = self.what_is_full().filter(|_| !denied) {
                    return self.full(action, what, &cause);
                }
                if denied || self.config.path.exists() {
                    return self.no_permission(action, cause);
                }
                format!("the file cannot be created in {shown}: {cause}")
            }
        };
        Error::config(self, ConfigPart::Server, why)
    }

    fn full(&self, action: &str, what: &str, cause: &str) -> Error {
        let directory = self.config.directory().display();
        let why = format!(
            "{what}, so no lock can be taken, renewed or released; free some space for {directory} ({cause})"
        );
        Error::unavailable(self, action, why)
    }

    /// What the file system has run out of. A quota is not visible here.
    fn what_is_full(&self) -> Option<&'static str> {
        let found = rustix::fs::statvfs(&self.config.path);
        let found = found.or_else(|_| rustix::fs::statvfs(self.config.directory()));
        let found = found.ok()?;
        if found.f_bavail.saturating_mul(found.f_frsize) < LEAST_SPACE {
            return Some("the disk is full");
        }
        let counted = found.f_files > 0;
        (counted && found.f_favail == 0).then_some("the disk has no inode left")
    }

    pub(crate) fn replaced(&self) -> Error {
        let why = "the file was deleted or replaced while it was opened";
        Error::unavailable(self, "opening the file", why)
    }
}
