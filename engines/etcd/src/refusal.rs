//! From the driver's errors to errors that say what to do.

use std::error::Error as _;

use etcd_client::Error as Driver;
use fencelock_core::Error;

/// Why a request was not done.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) error: Error,
    /// It may have been done all the same.
    pub(crate) maybe_done: bool,
    /// A lease in it is over.
    pub(crate) lease_gone: bool,
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        trouble.error
    }
}

impl Trouble {
    /// Of a request that was never sent.
    pub(crate) fn unsent(error: Error) -> Self {
        Self {
            error,
            maybe_done: false,
            lease_gone: false,
        }
    }
}

// The numbers of gRPC's codes.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const FAILED_PRECONDITION: i32 = 9;
const UNAUTHENTICATED: i32 = 16;

fn code(error: &Driver) -> Option<i32> {
    match error {
        Driver::GRpcStatus(status) => Some(status.code() as i32),
        _ => None,
    }
}

/// Whether the server said that a lease is not there.
pub(crate) fn is_lease_gone(error: &Driver) -> bool {
    match error {
        Driver::LeaseKeepAliveError(text) => text.contains("not found"),
        Driver::GRpcStatus(status) => {
            code(error) == Some(NOT_FOUND) && status.message().contains("lease not found")
        }
        _ => false,
    }
}

/// Whether the server itself answered that it will not.
pub(crate) fn is_refusal(error: &Driver) -> bool {
    let codes = [
        INVALID_ARGUMENT,
        NOT_FOUND,
        PERMISSION_DENIED,
        FAILED_PRECONDITION,
        UNAUTHENTICATED,
    ];
    is_lease_gone(error) || code(error).is_some_and(|code| codes.contains(&code))
}

/// The driver's error as one of ours: `action` is what was asked.
pub(crate) fn explain(store: &str, action: &str, error: &Driver) -> Error {
    let text = whole(error);
    let unknown_user =
        text.contains("authentication failed") || text.contains("user name is empty");
    match code(error) {
        Some(FAILED_PRECONDITION) if text.contains("authentication is not enabled") => {
            Error::config(
                store,
                "the server has no users (authentication is not enabled); leave user and password out",
            )
        }
        Some(UNAUTHENTICATED) => {
            Error::refused(store, format!("{action}; check user and password"), text)
        }
        Some(INVALID_ARGUMENT | FAILED_PRECONDITION) if unknown_user => {
            Error::refused(store, format!("{action}; check user and password"), text)
        }
        Some(PERMISSION_DENIED) => {
            let change = "grant this user's role readwrite on the prefix fencelock/ (with layout=concurrency also on \
                          the names that it locks)";
            Error::refused(store, format!("{action}; {change}"), text)
        }
        _ => Error::unavailable(store, action, text),
    }
}

/// The error with what is below it.
pub(crate) fn whole(error: &Driver) -> String {
    let mut below = match error {
        Driver::GRpcStatus(status) => status.source(),
        Driver::TransportError(error) => error.source(),
        _ => None,
    };
    let mut text = match error {
        Driver::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    };
    while let Some(cause) = below {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        below = cause.source();
    }
    text
}
