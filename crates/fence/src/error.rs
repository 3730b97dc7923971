//! Why a fence refused a write.

use fencelock_core::{Cause, Mode, Sequencer, Token};

/// A [`Result`](std::result::Result) with [`FenceError`].
pub type Result<T, E = FenceError> = std::result::Result<T, E>;

/// Why a fence refused a write. Nothing was written, except perhaps after [`FenceError::Write`] and
/// [`FenceError::TooFew`].
///
/// ```
/// # use fencelock_fence::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let fence = Highest::in_memory();
/// match fence.write(&holder, || println!("written")) {
///     Ok(()) => {}
///     Err(FenceError::Stale(stale)) => println!("stop: {stale}"),
///     Err(error) => println!("repair, and try again: {error}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has passed the fence.
    #[error(transparent)]
    Stale(#[from] Box<Stale>),

    /// The resource did not answer, or answered with an error. The request may have taken effect.
    #[error("fence at {resource}: could not {action}: {cause}; repair that, and try again")]
    #[non_exhaustive]
    Write {
        /// The resource.
        resource: String,
        /// The request.
        action: &'static str,
        /// The cause.
        #[source]
        cause: Cause,
    },

    /// The stored marks cannot be understood. No holder passes until they are repaired.
    #[error("fence at {resource}: {why}")]
    #[non_exhaustive]
    Damaged {
        /// The resource.
        resource: String,
        /// What was found, and what to do.
        why: String,
    },

    /// Another process has the file of the fence open.
    #[error(
        "fence at {resource}: another process has it open; end that process, or give each process its own file"
    )]
    #[non_exhaustive]
    InUse {
        /// The file.
        resource: String,
    },

    /// There is no row to write to, or there was none when the write ran.
    #[error("fence at {resource}: there is no such row to write to; insert it, and try again")]
    #[non_exhaustive]
    NoRow {
        /// The table.
        resource: String,
    },

    /// The id of an operation was used before with another fingerprint.
    #[error(
        "fence at {resource}: the id {id:?} belongs to another operation; choose a new id for each operation"
    )]
    #[non_exhaustive]
    AnotherOperation {
        /// The table of operations.
        resource: String,
        /// The id.
        id: String,
    },

    /// Too few replicas succeeded. Some may have been marked or written.
    #[error(
        "{done} of {of} replicas could {action}, and {needed} must; repair the others, and try again; the first failure: \
         {first}"
    )]
    #[non_exhaustive]
    TooFew {
        /// The action: "be marked" or "be written".
        action: &'static str,
        /// How many succeeded.
        done: usize,
        /// How many must succeed.
        needed: usize,
        /// How many there are.
        of: usize,
        /// The first failure.
        first: Box<FenceError>,
    },
}

impl FenceError {
    /// The refusal, if the error is one.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// # let fence = Highest::in_memory();
    /// # fence.mark(&holder)?;
    /// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
    /// let error = fence.mark(&late).unwrap_err();
    /// assert_eq!(error.stale().map(|stale| stale.won.get()), Some(34));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Self::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    /// A resource that did not answer, or answered with an error.
    ///
    /// ```
    /// # use fencelock_fence::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let error = FenceError::write("the archive", "append", "the disk is full");
    /// assert!(error.to_string().contains("could not append: the disk is full"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(
        resource: impl Into<String>,
        action: &'static str,
        cause: impl Into<Cause>,
    ) -> Self {
        let (resource, cause) = (resource.into(), cause.into());
        Self::Write {
            resource,
            action,
            cause,
        }
    }

    pub(crate) fn damaged(resource: impl Into<String>, why: impl Into<String>) -> Self {
        let (resource, why) = (resource.into(), why.into());
        Self::Damaged { resource, why }
    }
}

/// A refusal: the holder was superseded.
///
/// ```
/// # use fencelock_fence::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let marks = Marks::default().judge(&holder)?;
/// let late = "fl1:x:33:ffeeddccbbaa99887766554433221100:ledger".parse()?;
/// let stale = marks.judge(&late).unwrap_err();
/// assert_eq!((stale.late.token.get(), stale.won.get()), (33, 34));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {} of lock {} is stale: token {won} has been here ({}). If the locks were moved to another store, raise its tokens: \
     `fencelock migrate offline OLD NEW`",
    late.token, late.name, reason(late.mode)
)]
#[non_exhaustive]
pub struct Stale {
    /// The sequencer of the refused holder.
    pub late: Sequencer,
    /// The token that won.
    pub won: Token,
}

impl Stale {
    /// The refusal of a holder, because of the token that won.
    #[must_use]
    pub const fn new(late: Sequencer, won: Token) -> Self {
        Self { late, won }
    }
}

fn reason(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "an exclusive holder does not pass after a later holder",
        Mode::Shared | Mode::Permit { .. } => "it was exclusive",
    }
}
