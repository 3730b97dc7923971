//! Why a fence did not let a write through.

use fencelock_core::{Cause, Mode, Sequencer, Token};

/// A [`Result`](std::result::Result) with [`FenceError`].
pub type Result<T, E = FenceError> = std::result::Result<T, E>;

/// Why a fence did not let a write through. In every case but [`FenceError::Write`] nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A later holder has been here.
    #[error(transparent)]
    Stale(#[from] Box<Stale>),

    /// The resource did not answer, or answered with an error. What was asked of it may have been done all the same.
    #[error("fence at {resource}: could not {action}: {cause}; mend that, and try again")]
    Write {
        /// The resource.
        resource: String,
        /// What was asked of it.
        action: &'static str,
        /// What happened.
        #[source]
        cause: Cause,
    },

    /// What the fence has stored cannot be understood. Nobody passes until it is mended.
    #[error("fence at {resource}: {why}")]
    Damaged {
        /// The resource.
        resource: String,
        /// What was found, and what to do.
        why: String,
    },

    /// The file of a fence is another process's.
    #[error(
        "fence at {resource}: another process has it open; end that one, or give each process a file of its own"
    )]
    InUse {
        /// The file.
        resource: String,
    },

    /// There is nothing there that could be written to, or there was nothing when it was tried.
    #[error("fence at {resource}: there was no such row to write to; insert it, and try again")]
    NoRow {
        /// Where.
        resource: String,
    },

    /// The id of an operation came with another fingerprint before.
    #[error(
        "fence at {resource}: operation {id:?} was another one before; choose an id of its own for each operation"
    )]
    AnotherOperation {
        /// The table of operations.
        resource: String,
        /// The operation's id.
        id: String,
    },

    /// Too few replicas took part. Some may have done what was asked.
    #[error(
        "{done} of {of} replicas could {action}, and {needed} must; bring more of them back, and try again; the first failure: \
         {first}"
    )]
    TooFew {
        /// What was asked: "be marked", "be written".
        action: &'static str,
        /// How many did it.
        done: usize,
        /// How many must.
        needed: usize,
        /// How many there are.
        of: usize,
        /// What the first of the others failed with.
        first: Box<FenceError>,
    },
}

impl FenceError {
    /// The refusal, if it is one: also where a majority of replicas was out of reach because of it.
    #[must_use]
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Self::Stale(stale) => Some(stale),
            _ => None,
        }
    }

    #[cfg(any(
        feature = "etcd",
        feature = "redis",
        feature = "zookeeper",
        feature = "mysql",
        feature = "postgres",
        feature = "sqlite"
    ))]
    pub(crate) fn write(
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "token {} of lock {} is stale: token {won} has been here ({})", 
    late.token, late.name, beside(late.mode)
)]
pub struct Stale {
    /// Who was refused.
    pub late: Sequencer,
    /// The token that won.
    pub won: Token,
}

fn beside(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "an exclusive holder passes no later holder",
        Mode::Shared | Mode::Permit { .. } => "it was exclusive",
    }
}
