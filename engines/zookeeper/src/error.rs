//! The driver's errors by meaning.

use fencelock_core::{ConfigPart, Error};
use zookeeper_client::Error as Refusal;

use crate::config::Config;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The servers refused it: it has had no effect and will have none.
    Refused(Refusal),
    /// No reply came, or one that does not say what happened: the request may have taken effect.
    Unanswered(String),
}

impl From<Refusal> for Failure {
    fn from(error: Refusal) -> Self {
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
            | Refusal::BadArguments(_) => Self::Refused(error),
            error => Self::Unanswered(error.to_string()),
        }
    }
}

/// The engine's error for a failed request of this action.
pub(crate) fn error(config: &Config, action: impl Into<String>, failure: Failure) -> Error {
    let (store, action) = (&config.store, action.into());
    match failure {
        Failure::Unanswered(why) => Error::unavailable(store, action, why),
        Failure::Refused(Refusal::NoAuth) => {
            let root = config.root_path();
            let action = format!(
                "{action} (this needs the rights read, create and delete at {root}, and the rights of the user who created the nodes below it)"
            );
            Error::refused(store, action, Refusal::NoAuth)
        }
        Failure::Refused(Refusal::Unimplemented) => {
            let why = format!("{action}: the server is too old; ZooKeeper 3.6 or later is needed");
            Error::config(store, ConfigPart::Server, why)
        }
        Failure::Refused(refusal @ (Refusal::QuotaExceeded | Refusal::NoChildrenForEphemerals)) => {
            Error::refused(store, action, refusal)
        }
        Failure::Refused(refusal) => Error::internal(store, format!("{action}: {refusal}")),
    }
}

pub(crate) enum ReadError {
    Failure(Failure),
    Error(Error),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}
