//! Temporary directories.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::failure::{Failure, Result};

/// A fresh directory under the system's one for temporary files; removed with all it holds when dropped.
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
                // Somebody was given the same nanosecond; the next one is ours.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let what = format!("make the directory {}", path.display());
                    return Err(Failure::to(what)(error));
                }
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of `name` in it, as text: it is part of commands, configurations and URLs.
    #[must_use]
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Nobody could be told, and the system clears its temporary files some day.
        drop(fs::remove_dir_all(&self.0));
    }
}
