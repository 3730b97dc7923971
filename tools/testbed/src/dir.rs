//! Temporary directories.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::{Failure, Result};

/// A fresh temporary directory; removed with its content when dropped.
#[derive(Debug)]
pub struct Dir(PathBuf);

impl Dir {
    /// A new empty directory, whose name begins with `fencelock-` and `what`.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(what: &str) -> Result<Self> {
        let process = std::process::id();
        loop {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let nanos = since.map_or(0, |since| since.as_nanos() % 1_000_000_000_000);
            let path = std::env::temp_dir().join(format!("fencelock-{what}-{process}-{nanos}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                // Another process has used the same nanosecond: try the next one.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!("make the directory {}", path.display());
                    return Err(Failure::to(what)(error));
                }
            }
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in it, as text for commands, configurations and URLs.
    #[must_use]
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A failure cannot be reported here, and the system removes temporary files anyway.
        drop(fs::remove_dir_all(&self.0));
    }
}
