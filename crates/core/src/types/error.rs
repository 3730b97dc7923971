//! The errors, by meaning: what was requested, of which store, what happened, what to do.

use std::time::Duration;

use super::duration::in_words;
use super::loss::LossReason;
use super::mode::Mode;
use super::name::LockName;

/// A [`Result`](std::result::Result) with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an [`Error`], with any type of the store's driver.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Why a lock was not taken, or is no longer held. Match on the variant; the text is for a person.
///
/// No variant ever shows a password.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// match client.try_lock("report").await {
///     Ok(guard) => drop(guard.release().await?),
///     Err(Error::Held { name, .. }) => println!("{name} is taken"),
///     Err(error) if error.is_retryable() => println!("later: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An input cannot be used. Nothing was sent to the store.
    #[error("{what} {}: {why}", quoted(input))]
    #[non_exhaustive]
    Invalid {
        /// What kind of input: "lock name", "ttl".
        what: &'static str,
        /// The input itself.
        input: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },

    /// The URL of a store, or the configuration of the store's server, cannot be used.
    #[error("store {store}: {why}")]
    #[non_exhaustive]
    Config {
        /// The store's URL without its password.
        store: String,
        /// What must be changed.
        part: ConfigPart,
        /// What is wrong with it and what to change.
        why: String,
    },

    /// The configuration file cannot be used.
    #[error("configuration file {file}: {why}")]
    #[non_exhaustive]
    ConfigFile {
        /// The file, and which part of it.
        file: String,
        /// What is wrong with it and what to change.
        why: String,
    },

    /// Another holds the lock, and the call must not wait.
    #[error("lock {name} is held by another client")]
    #[non_exhaustive]
    Held {
        /// The lock.
        name: LockName,
    },

    /// The time to wait is over, and another still holds the lock.
    #[error("lock {name} is still held by another client after {}", in_words(*waited))]
    #[non_exhaustive]
    TimedOut {
        /// The lock.
        name: LockName,
        /// How long the call waited.
        waited: Duration,
    },

    /// A grant may no longer be trusted.
    #[error("lock {name} was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The lock.
        name: LockName,
        /// What happened.
        reason: LossReason,
    },

    /// The engine does not promise what was requested. Nothing was sent to the store.
    #[error("store {store} does not offer {what}: {why}")]
    #[non_exhaustive]
    Unsupported {
        /// The store.
        store: String,
        /// What was requested: "a lock-delay", "shared mode".
        what: &'static str,
        /// Why it is not available here, and what to use instead.
        why: String,
    },

    /// The store did not answer, or could not just now. Another attempt may succeed.
    #[error("store {store}: {action}: {cause}")]
    #[non_exhaustive]
    Unavailable {
        /// The store.
        store: String,
        /// What was requested.
        action: String,
        /// What happened.
        #[source]
        cause: Cause,
    },

    /// The store refuses this user: wrong password, missing right.
    #[error("store {store} refuses: {action}: {cause}")]
    #[non_exhaustive]
    Refused {
        /// The store.
        store: String,
        /// What was requested, and which right it needs.
        action: String,
        /// What the store said.
        #[source]
        cause: Cause,
    },

    /// The value that the store has under this name is not a lock that this version understands. It was not changed.
    #[error("store {store}: what is stored for {name}: {why}")]
    #[non_exhaustive]
    NotALock {
        /// The store.
        store: String,
        /// The lock.
        name: LockName,
        /// What was found there, and what to do.
        why: String,
    },

    /// The client was closed.
    #[error("this client is closed; open a new one")]
    Closed,

    /// A bug in fencelock or in the store's driver.
    #[error("store {store}: internal error: {why}")]
    #[non_exhaustive]
    Internal {
        /// The store.
        store: String,
        /// What was seen.
        why: String,
    },
}

/// What must be changed before a store can be used: see [`Error::Config`].
///
/// ```
/// # use fencelock_core::*;
/// # fn main() -> Result<()> {
/// let wrong = StoreUrl::parse("redis://db?db=1&db=2").unwrap_err();
/// assert!(matches!(wrong, Error::Config { part: ConfigPart::Url, .. }));
/// let missing = StoreUrl::parse("redis://db?password-file=/nowhere")?.take_password().unwrap_err();
/// match missing {
///     Error::Config { part: ConfigPart::File, why, .. } => println!("a secret is not mounted: {why}"),
///     other => return Err(other),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigPart {
    /// The URL, one of its options, or the name of a store. Nothing was sent to the store.
    Url,
    /// A file or an environment variable that the URL names. Nothing was sent to the store.
    File,
    /// This build: the cargo feature of the store, of TLS or of the configuration file is missing.
    Build,
    /// The server, or the file of an SQLite store: it is of another kind or version, or its configuration does not suit locks.
    Server,
    /// The record of a set of stores: it is missing, or belongs to another set.
    Record,
}

impl ConfigPart {
    /// The part as one word, for metrics and logs.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(ConfigPart::Server.as_str(), "server");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Url => "url",
            Self::File => "file",
            Self::Build => "build",
            Self::Server => "server",
            Self::Record => "record",
        }
    }
}

/// An input in quotes, shortened, since it may be very long. It is shown because the reader has given it.
fn quoted(input: &str) -> String {
    const MOST: usize = 100;
    match input.char_indices().nth(MOST) {
        Some((end, _)) => format!("{:?}…", &input[..end]),
        None => format!("{input:?}"),
    }
}

impl Error {
    /// An input that cannot be used.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::invalid("port", "http", "it must be a number");
    /// assert_eq!(error.to_string(), "port \"http\": it must be a number");
    /// ```
    pub fn invalid(what: &'static str, input: impl Into<String>, why: impl Into<String>) -> Self {
        let (input, why) = (input.into(), why.into());
        Self::Invalid { what, input, why }
    }

    /// A store's URL or configuration that cannot be used.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::config("redis://db", ConfigPart::Url, "it has an unknown option \"tll\"");
    /// assert!(matches!(error, Error::Config { part: ConfigPart::Url, .. }));
    /// ```
    pub fn config(store: impl ToString, part: ConfigPart, why: impl Into<String>) -> Self {
        let (store, why) = (store.to_string(), why.into());
        Self::Config { store, part, why }
    }

    /// A configuration file that cannot be used.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::config_file("f.toml", "line 3: it has no url");
    /// assert_eq!(error.to_string(), "configuration file f.toml: line 3: it has no url");
    /// assert_eq!(error.as_str(), "config");
    /// ```
    pub fn config_file(file: impl ToString, why: impl Into<String>) -> Self {
        let (file, why) = (file.to_string(), why.into());
        Self::ConfigFile { file, why }
    }

    /// Something that an engine does not promise.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::unsupported("etcd://e1", "a shared hold", "this store has none");
    /// assert!(!error.is_retryable());
    /// ```
    pub fn unsupported(store: impl ToString, what: &'static str, why: impl Into<String>) -> Self {
        let (store, why) = (store.to_string(), why.into());
        Self::Unsupported { store, what, why }
    }

    /// A claim that holds as `held`, and asks for a mode that is not weaker.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::stronger_mode("etcd://e1", Mode::Shared);
    /// assert!(error.to_string().contains("holds as shared; release it first"));
    /// ```
    pub fn stronger_mode(store: impl ToString, held: Mode) -> Self {
        let why = format!("the claim holds as {}; release it first", held.as_str());
        Self::unsupported(store, "a change from a weaker mode to a stronger one", why)
    }

    /// No answer from the store.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::unavailable("redis://db", "taking lock report", "no answer within 2s");
    /// assert!(error.is_away() && error.is_retryable());
    /// ```
    pub fn unavailable(
        store: impl ToString,
        action: impl Into<String>,
        cause: impl Into<Cause>,
    ) -> Self {
        let (store, action, cause) = (store.to_string(), action.into(), cause.into());
        Self::Unavailable {
            store,
            action,
            cause,
        }
    }

    /// An answer that is not final: an earlier request of the same claim may still take effect.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert!(Error::unsettled("redis://db", "releasing lock report").is_retryable());
    /// ```
    pub fn unsettled(store: impl ToString, action: impl Into<String>) -> Self {
        let cause = "an earlier request may still take effect";
        Self::unavailable(store, action, cause)
    }

    /// The store refuses this user.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::refused("redis://db", "taking lock report", "NOPERM");
    /// assert!(!error.is_retryable());
    /// ```
    pub fn refused(
        store: impl ToString,
        action: impl Into<String>,
        cause: impl Into<Cause>,
    ) -> Self {
        let (store, action, cause) = (store.to_string(), action.into(), cause.into());
        Self::Refused {
            store,
            action,
            cause,
        }
    }

    /// Something stored that is not a lock that this version understands.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let error = Error::not_a_lock("redis://db", &LockName::new("report")?, "it is a list");
    /// assert!(matches!(error, Error::NotALock { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn not_a_lock(store: impl ToString, name: &LockName, why: impl Into<String>) -> Self {
        let (store, name, why) = (store.to_string(), name.clone(), why.into());
        Self::NotALock { store, name, why }
    }

    /// A bug, here or in the store's driver.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::internal("redis://db", "a reply that no version sends");
    /// assert!(matches!(error, Error::Internal { .. }));
    /// ```
    pub fn internal(store: impl ToString, why: impl Into<String>) -> Self {
        let (store, why) = (store.to_string(), why.into());
        Self::Internal { store, why }
    }

    /// The variant as one word, for metrics and logs.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # fn main() -> Result<()> {
    /// let (store, name) = ("redis://db", LockName::new("report")?);
    /// assert_eq!(Error::config(store, ConfigPart::Server, "it has no host").as_str(), "config");
    /// assert_eq!(Error::unsupported(store, "a permit", "it has none").as_str(), "unsupported");
    /// assert_eq!(Error::unsettled(store, "withdrawing a claim").as_str(), "unavailable");
    /// assert_eq!(Error::refused(store, "taking lock report", "NOPERM").as_str(), "refused");
    /// assert_eq!(Error::not_a_lock(store, &name, "it is a list").as_str(), "not_a_lock");
    /// assert_eq!(Error::internal(store, "a task panicked").as_str(), "internal");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::Config { .. } | Self::ConfigFile { .. } => "config",
            Self::Held { .. } => "held",
            Self::TimedOut { .. } => "timed_out",
            Self::Lost { .. } => "lost",
            Self::Unsupported { .. } => "unsupported",
            Self::Unavailable { .. } => "unavailable",
            Self::Refused { .. } => "refused",
            Self::NotALock { .. } => "not_a_lock",
            Self::Closed => "closed",
            Self::Internal { .. } => "internal",
        }
    }

    /// Whether another attempt can succeed without any other change: the lock is held by another, or the store did not answer.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
    /// let guard = client.lock("report").await?;
    /// let error = client.try_lock("report").await.unwrap_err();
    /// assert!(error.is_retryable() && !error.is_away());
    /// assert_eq!(error.as_str(), "held");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.is_away() || matches!(self, Self::Held { .. } | Self::TimedOut { .. })
    }

    /// Whether the store is away: it did not answer, or could not just now.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// let error = Error::unavailable("redis://db", "taking lock report", "connection reset");
    /// assert!(error.is_away());
    /// ```
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_input_is_cut_short() {
        let error = Error::invalid("label", "ä".repeat(5000), "it is too long").to_string();
        assert_eq!(
            error,
            format!("label \"{}\"…: it is too long", "ä".repeat(100))
        );
        let error = Error::invalid("port", "a\nb", "no").to_string();
        assert_eq!(error, r#"port "a\nb": no"#);
    }
}
