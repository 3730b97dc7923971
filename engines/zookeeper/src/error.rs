//! The driver's errors by meaning.

use fencelock_core::Error;
use zookeeper_client::Error as Refusal;

use crate::config::Config;

/// Why a request did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The servers answered so; whatever was asked is not done.
    Refused(Refusal),
    /// There was no answer that tells.
    Unanswered(String),
}

pub(crate) fn classify(error: Refusal) -> Failure {
    match error {
        Refusal::NoNode
        | Refusal::NoAuth
        | Refusal::BadVersion
        | Refusal::NoChildrenForEphemerals
        | Refusal::NodeExists
        | Refusal::NotEmpty
        | Refusal::InvalidAcl
        | Refusal::QuotaExceeded
        | Refusal::Unimplemented
        | Refusal::BadArguments(_) => Failure::Refused(error),
        error => Failure::Unanswered(error.to_string()),
    }
}

/// An error that says what was asked.
pub(crate) fn error(config: &Config, action: impl Into<String>, failure: Failure) -> Error {
    let (store, action) = (&config.store, action.into());
    match failure {
        Failure::Unanswered(why) => Error::unavailable(store, action, why),
        Failure::Refused(Refusal::NoAuth) => {
            let root = config.root_path();
            let action = format!(
                "{action} (this needs the rights read, create and delete at {root}, and those of the user who made what is below it)"
            );
            Error::refused(store, action, Refusal::NoAuth)
        }
        Failure::Refused(Refusal::Unimplemented) => {
            let why = format!("{action}: the server is too old; ZooKeeper 3.6 or later is needed");
            Error::config(store, why)
        }
        Failure::Refused(refusal @ (Refusal::QuotaExceeded | Refusal::NoChildrenForEphemerals)) => {
            Error::refused(store, action, refusal)
        }
        Failure::Refused(refusal) => Error::Internal {
            store: store.clone(),
            why: format!("{action}: {refusal}"),
        },
    }
}

/// Why a line could not be read.
pub(crate) enum ReadError {
    Failure(Failure),
    Error(Error),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}
