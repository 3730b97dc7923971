//! Which file is read.

use std::path::PathBuf;

/// The environment variable that names the file.
pub const VARIABLE: &str = "FENCELOCK_CONFIG";

/// The file that is read if nobody names one.
pub const DEFAULT_PATH: &str = "/etc/fencelock/fencelock.toml";

/// The file that the environment names, else the one of this machine. It never looks in the working directory: cron and a shell
/// must not end up on different stores by accident.
#[must_use]
pub fn path() -> PathBuf {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    path.map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from)
}
