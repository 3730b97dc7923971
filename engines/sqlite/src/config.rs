//! The options, checked, and the default file.

use std::fmt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock_core::{ConfigPart, Error, Result};

use crate::options::Options;

/// The default of both timeouts.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Config {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// How long opening waits for processes that have the file locked.
    pub(crate) connect_timeout: Duration,
    /// How long each call waits for them.
    pub(crate) response_timeout: Duration,
    /// Nothing is written, and nothing is created.
    pub(crate) inspect_only: bool,
}

impl Config {
    /// Creates the directory of the default file if it is used.
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        if own.is_none() && url.to_string().contains("://") {
            return Err(url.refuse("a file has no host; write sqlite:/PATH, with one slash"));
        }
        let connect_timeout = url.take_timeout("connect-timeout", TIMEOUT)?;
        let response_timeout = url.take_timeout("response-timeout", TIMEOUT)?;
        let inspect_only = url.inspect_only;
        let path = match own {
            Some(path) => path,
            None if url.path.is_empty() => {
                let path = default_path()?;
                if !inspect_only {
                    create_default_directory(&path)?;
                }
                path
            }
            None => PathBuf::from(&url.path),
        };
        url.finish()?;
        let path = std::path::absolute(&path).map_err(|error| {
            let store = format!("sqlite:{}", path.display());
            Error::config(
                &store,
                ConfigPart::Url,
                format!("the path cannot be used: {error}"),
            )
        })?;
        Ok(Self {
            path,
            connect_timeout,
            response_timeout,
            inspect_only,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }
}

/// As it is shown in errors and in the engine's own `Display`.
impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

/// `$XDG_STATE_HOME/fencelock/locks.db`, otherwise `~/.local/state/fencelock/locks.db`.
pub(crate) fn default_path() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    // The XDG specification says to ignore a relative path in XDG_STATE_HOME.
    let state = set("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.filter(|path| path.is_absolute());
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let Some(state) = state.or_else(home) else {
        let why = "neither XDG_STATE_HOME nor HOME is set, so there is no default file; name one: sqlite:/PATH";
        return Err(Error::config("sqlite:", ConfigPart::Url, why));
    };
    Ok(state.join("fencelock/locks.db"))
}

fn create_default_directory(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut builder = std::fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o700).create(directory);
    created.map_err(|error| {
        let why = format!(
            "the directory {} of the default file cannot be created: {error}; name another file: sqlite:/PATH",
            directory.display()
        );
        Error::config("sqlite:", ConfigPart::Url, why)
    })
}

#[cfg(test)]
mod tests {
    use fencelock_core::StoreUrl;

    use super::*;

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new("/run/a b.db").response_timeout(Duration::from_millis(300));
        let options = options.connect_timeout(Duration::from_secs(1));
        let url = "sqlite:/run/a%20b.db?response-timeout=300ms&connect-timeout=1s";
        let by_url = Config::new(StoreUrl::parse(url).unwrap().into()).unwrap();
        let by_setters = Config::new(options.clone()).unwrap();
        assert_eq!(format!("{by_setters:?}"), format!("{by_url:?}"));
        assert_eq!(format!("{options:?}"), "Options(sqlite:/run/a b.db)");
        let one = || Options::new("/x");
        for (wrong, word) in [
            (one().response_timeout(Duration::MAX), "response-timeout"),
            (one().response_timeout(Duration::ZERO), "response-timeout"),
            (one().connect_timeout(Duration::ZERO), "connect-timeout"),
        ] {
            let error = Config::new(wrong).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
