//! Which file is read.

use std::path::PathBuf;

/// The environment variable that names the file.
pub const VARIABLE: &str = "FENCELOCK_CONFIG";

/// The default file.
pub const DEFAULT_PATH: &str = "/etc/fencelock/fencelock.toml";

/// The file that the environment names, or else the default file. It never looks in the working directory: cron and a
/// shell must not use different stores by accident.
#[must_use]
pub fn path() -> PathBuf {
    let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    path.map_or_else(|| PathBuf::from(DEFAULT_PATH), PathBuf::from)
}
