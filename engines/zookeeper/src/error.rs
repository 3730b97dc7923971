//! The driver's errors by meaning.

use fencelock_core::Error;
use zookeeper_client::Error as Refusal;

use crate::config::Config;

/// Why a request did not do what was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The servers answered so; whatever was asked is not done.
    Answered(Refusal),
    /// There was no answer that tells.
    Silent(String),
}

pub(crate) fn sort(error: Refusal) -> Trouble {
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
        | Refusal::BadArguments(_) => Trouble::Answered(error),
        error => Trouble::Silent(error.to_string()),
    }
}

/// An error that says what was asked.
pub(crate) fn error(config: &Config, action: impl Into<String>, trouble: Trouble) -> Error {
    let (store, action) = (&config.store, action.into());
    match trouble {
        Trouble::Silent(why) => Error::unavailable(store, action, why),
        Trouble::Answered(Refusal::NoAuth) => {
            let root = config.root_path();
            let action = format!(
                "{action} (this needs the rights read, create and delete at {root}, and those of the user who made what is below it)"
            );
            Error::refused(store, action, Refusal::NoAuth)
        }
        Trouble::Answered(Refusal::Unimplemented) => {
            let why = format!("{action}: the server is too old; ZooKeeper 3.6 or later is needed");
            Error::config(store, why)
        }
        Trouble::Answered(
            refusal @ (Refusal::QuotaExceeded | Refusal::NoChildrenForEphemerals),
        ) => Error::refused(store, action, refusal),
        Trouble::Answered(refusal) => Error::Internal {
            store: store.clone(),
            why: format!("{action}: {refusal}"),
        },
    }
}

/// Why a line could not be read.
pub(crate) enum Read {
    Trouble(Trouble),
    Error(Error),
}

impl From<Trouble> for Read {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}
