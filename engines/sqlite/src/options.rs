//! The typed options.

use std::path::PathBuf;

use fencelock_core::{StoreUrl, common_setters, setters};

/// Which file, and how to use it: the options of a URL, with types.
///
/// ```
/// use std::time::Duration;
/// use fencelock_sqlite::{Options, Sqlite};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock_core::Result<()> {
/// # let file = std::env::temp_dir().join(format!("fencelock-{}.db", std::process::id()));
/// let options = Options::new(&file).response_timeout(Duration::from_secs(1));
/// let engine = Sqlite::open(options).await?;
/// # drop(std::fs::remove_file(&file));
/// # Ok(())
/// # }
/// ```
///
/// An open connection cannot be used: the locks have a thread with a separate connection, which must not be inside a
/// transaction of the program.
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    /// The file, if it is not in the URL. It need not be UTF-8.
    pub(crate) own: Option<PathBuf>,
}

impl Options {
    /// A file, whose directory must exist. In a URL: `sqlite:PATH`.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        let file = file.into();
        let url = StoreUrl::new("sqlite", [""; 0], file.to_string_lossy());
        let own = Some(file);
        Self { url, own }
    }

    /// The default file, one per user. In a URL: `sqlite:`.
    ///
    /// ```
    /// # use fencelock_sqlite::Options;
    /// let options = Options::default_file().prefix("billing/");
    /// ```
    #[must_use]
    pub fn default_file() -> Self {
        StoreUrl::new("sqlite", [""; 0], "").into()
    }

    setters! {
        /// How long opening waits for processes that have the file locked; 5 s by default.
        connect_timeout(duration) "connect-timeout";
        /// How long each call waits for such processes; 5 s by default.
        response_timeout(duration) "response-timeout";
    }

    common_setters!();
}
