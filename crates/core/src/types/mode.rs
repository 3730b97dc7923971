//! How a lock is held, and how a hold ends.

use std::num::NonZeroU32;

/// How a lock is held.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// let guard = client.lock("catalogue").mode(Mode::Shared).await?;
/// assert_eq!(guard.mode().as_str(), "shared");
/// assert_eq!(guard.mode().letter(), 's');
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By one holder alone.
    Exclusive,
    /// By any number of shared holders together.
    Shared,
    /// By at most `of` holders together, each with a permit.
    Permit {
        /// How many permits there are.
        of: NonZeroU32,
    },
}

impl Mode {
    /// The mode's letter in sequencers and in stores: `x`, `s` or `p`.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Mode::Shared.letter(), 's');
    /// ```
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Exclusive => 'x',
            Self::Shared => 's',
            Self::Permit { .. } => 'p',
        }
    }

    /// The mode as a word, as in `show --json`.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Mode::Shared.as_str(), "shared");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permit { .. } => "permit",
        }
    }
}

/// The result of a release.
///
/// ```
/// # use fencelock_core::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let client = Client::new(std::sync::Arc::new(Memory::new()))?;
/// match client.lock("report").await?.release().await? {
///     Release::Released => {}
///     other => println!("it was no longer held: {}", other.as_str()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now.
    Released,
    /// The lease had already ended; others may have held the lock since.
    AlreadyExpired,
    /// Another holds the lock now. It was not changed.
    NotOwner,
}

impl Release {
    /// The outcome as one word, for metrics and logs.
    ///
    /// ```
    /// # use fencelock_core::*;
    /// assert_eq!(Release::NotOwner.as_str(), "not_owner");
    /// ```
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::AlreadyExpired => "already_expired",
            Self::NotOwner => "not_owner",
        }
    }
}
