//! Stores by their names in a configuration file.

use std::path::Path;

use fencelock_config::Stores;
use fencelock_core::{Purpose, Result};

use crate::connect::{Connect, connect};
use crate::store::{Store, of_file};

/// The stores that have names in a configuration file, `[store.NAME]`.
///
/// `fencelock::connect("@orders")` does the same with the file that [`find`](Self::find) reads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// use fencelock::Config;
///
/// # let path = std::env::temp_dir().join(format!("fencelock-doc-config-{}.toml", std::process::id()));
/// # std::fs::write(&path, "[store.orders]\nurl = \"memory:\"\npurpose = \"efficiency\"\n").unwrap();
/// let config = Config::load(&path)?;
/// let client = config.connect("orders").await?;
/// client.lock("{customer-7}/invoice").await?.release().await?;
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    stores: Stores,
}

impl Config {
    /// The environment variable that names the file.
    pub const VARIABLE: &'static str = fencelock_config::VARIABLE;

    /// The file that is read if the environment names none.
    pub const DEFAULT_PATH: &'static str = fencelock_config::DEFAULT_PATH;

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::ConfigFile`](crate::Error::ConfigFile), which names the file and the line, if the file cannot be read or has an unknown
    /// key.
    ///
    /// ```
    /// let missing = fencelock::Config::load("/nowhere/fencelock.toml").unwrap_err();
    /// assert!(missing.to_string().contains("/nowhere/fencelock.toml"));
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let stores = Stores::load(path)?;
        Ok(Self { stores })
    }

    /// Reads the file that `$FENCELOCK_CONFIG` names, else `/etc/fencelock/fencelock.toml`. It never reads a file in the
    /// working directory.
    ///
    /// ```no_run
    /// let config = fencelock::Config::find()?;
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn find() -> Result<Self> {
        Self::load(fencelock_config::path())
    }

    /// Reads `text` as the content of a file. Errors name it `file`.
    ///
    /// ```
    /// let config = fencelock::Config::read("test.toml", "[store.cache]\nurl = \"redis://cache\"")?;
    /// assert_eq!(config.names().collect::<Vec<_>>(), ["cache"]);
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(file: &str, text: &str) -> Result<Self> {
        let stores = Stores::read(file, text)?;
        Ok(Self { stores })
    }

    /// The name of the file.
    ///
    /// ```
    /// let config = fencelock::Config::read("test.toml", "")?;
    /// assert_eq!(config.file(), "test.toml");
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    #[must_use]
    pub fn file(&self) -> &str {
        self.stores.file()
    }

    /// The names of the stores, in order.
    ///
    /// ```
    /// let config = fencelock::Config::read("f", "[store.b]\nurl = \"memory:\"\n[store.a]\nurl = \"memory:\"")?;
    /// assert_eq!(config.names().collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.stores.names()
    }

    /// What the locks of a store are for, if the file says so.
    ///
    /// ```
    /// # use fencelock::{Config, Purpose};
    /// let config = Config::read("f", "[store.a]\nurl = \"memory:\"\npurpose = \"correctness\"")?;
    /// assert_eq!(config.purpose("a"), Some(Purpose::Correctness));
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    #[must_use]
    pub fn purpose(&self, name: &str) -> Option<Purpose> {
        self.stores
            .purpose(fencelock_config::name_of(name).unwrap_or(name))
    }

    /// The URL of a store; `name` may begin with `@`. It has no password, since the file has none. For a set it is a URL
    /// `shards:`.
    ///
    /// ```
    /// # use fencelock::Config;
    /// let config = Config::read("f", "[store.cache]\nurl = \"redis://cache\"")?;
    /// assert_eq!(config.url("@cache")?, "redis://cache");
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) if there is no such store, its URL has a password, or it contains itself.
    pub fn url(&self, name: &str) -> Result<String> {
        self.stores.url(name)
    }

    /// A store that is not open yet. Opening it reports what is wrong with it.
    ///
    /// ```
    /// # use fencelock::Config;
    /// let config = Config::read("f", "[store.a]\nurl = \"memory:?typo=1\"")?;
    /// assert!(config.store("a").check().is_err());
    /// # Ok::<(), fencelock::Error>(())
    /// ```
    #[must_use]
    pub fn store(&self, name: &str) -> Store {
        of_file(&self.stores, name)
    }

    /// Opens a store; await the result. See [`connect`](crate::connect()).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// let config = fencelock::Config::read("f", "[store.a]\nurl = \"memory:\"")?;
    /// let client = config.connect("a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect(&self, name: &str) -> Connect {
        connect(self.store(name))
    }
}
