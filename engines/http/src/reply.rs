//! An answer, the replica that sent it, and when the request was sent.

use std::sync::Arc;

use fencelock_core::BootInstant;
use http::StatusCode;

use crate::connection::Answer;
use crate::home::Home;
use crate::replicas::Replicas;

/// An answer of a replica that serves the right store.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// An instant before the request was sent.
    pub(crate) sent: BootInstant,
    pub(crate) replica: Asked,
    /// Whether a replica got the request before and did not answer.
    pub(crate) in_doubt_before: bool,
}

/// The replica that got the request.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Listed(usize),
    Home(Arc<Home>),
}

impl Asked {
    pub(crate) fn index(&self) -> usize {
        match self {
            Self::Listed(index) => *index,
            Self::Home(home) => home.index,
        }
    }

    pub(crate) fn address<'a>(&'a self, replicas: &'a Replicas) -> &'a str {
        match self {
            Self::Listed(index) => replicas.address(*index),
            Self::Home(home) => &home.address,
        }
    }
}

impl Reply {
    pub(crate) fn status(&self) -> StatusCode {
        self.answer.status
    }

    /// From when a lease in the answer counts: before the request was sent.
    pub(crate) fn counted_from(&self) -> BootInstant {
        #[cfg(fencelock_planted)]
        if fencelock_core::planted::is("lease-from-answer") {
            return fencelock_core::Clock::Boot.now();
        }
        self.sent
    }
}
