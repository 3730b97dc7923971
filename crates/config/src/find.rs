//! Which file is read.

use std::path::PathBuf;

/// The environment variable that names the file.
pub const VARIABLE: &str = "FENCELOCK_CONFIG";

/// The file that is read if neither the command line nor the environment names one.
pub const DEFAULT_PATH: &str = "/etc/fencelock/fencelock.toml";

/// The file that the command line names, else that of the environment, else the one of this machine. It never looks in the
/// working directory: cron and a shell must not end up on different stores by accident.
#[must_use]
pub fn path(given: Option<PathBuf>) -> PathBuf {
    let variable = || {
        let path = std::env::var_os(VARIABLE);
        path.filter(|path| !path.is_empty()).map(PathBuf::from)
    };
    given
        .or_else(variable)
        .unwrap_or_else(|| PathBuf::from(DEFAULT_PATH))
}
