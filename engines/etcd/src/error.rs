//! The driver's errors by meaning, with what to do about them.

use std::error::Error as _;

use etcd_client::Error as Driver;
use fencelock_core::{ConfigPart, Error};

#[derive(Debug)]
pub(crate) struct RequestError {
    pub(crate) error: Error,
    /// The request may have taken effect nevertheless.
    pub(crate) in_doubt: bool,
    /// A lease that the request names has expired.
    pub(crate) lease_expired: bool,
}

impl From<RequestError> for Error {
    fn from(failed: RequestError) -> Self {
        failed.error
    }
}

impl RequestError {
    /// A request that was never sent.
    pub(crate) fn not_sent(error: Error) -> Self {
        Self {
            error,
            in_doubt: false,
            lease_expired: false,
        }
    }

    /// The driver's error of a request. `action` says what the request should do.
    pub(crate) fn from_driver(store: &str, action: &str, error: &Driver) -> Self {
        Self {
            error: explain(store, action, error),
            in_doubt: !is_refusal(error),
            lease_expired: is_lease_expired(error),
        }
    }

    pub(crate) fn no_reply(error: Error) -> Self {
        Self {
            error,
            in_doubt: true,
            lease_expired: false,
        }
    }
}

// gRPC status codes.
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

fn is_lease_expired(error: &Driver) -> bool {
    match error {
        Driver::LeaseKeepAliveError(text) => text.contains("not found"),
        Driver::GRpcStatus(status) => {
            code(error) == Some(NOT_FOUND) && status.message().contains("lease not found")
        }
        _ => false,
    }
}

/// Whether the server itself refused the request.
pub(crate) fn is_refusal(error: &Driver) -> bool {
    let codes = [
        INVALID_ARGUMENT,
        NOT_FOUND,
        PERMISSION_DENIED,
        FAILED_PRECONDITION,
        UNAUTHENTICATED,
    ];
    is_lease_expired(error) || code(error).is_some_and(|code| codes.contains(&code))
}

/// The driver's error as one of the core's. `action` says what the request should do.
pub(crate) fn explain(store: &str, action: &str, error: &Driver) -> Error {
    let text = full_text(error);
    let unknown_user =
        text.contains("authentication failed") || text.contains("user name is empty");
    match code(error) {
        Some(FAILED_PRECONDITION) if text.contains("authentication is not enabled") => {
            Error::config(
                store,
                ConfigPart::Server,
                "authentication is not enabled on the server; remove user and password from the URL",
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

/// The error's text with the texts of its causes.
pub(crate) fn full_text(error: &Driver) -> String {
    let mut cause = match error {
        Driver::GRpcStatus(status) => status.source(),
        Driver::TransportError(error) => error.source(),
        _ => None,
    };
    let mut text = match error {
        Driver::GRpcStatus(status) => status.message().to_owned(),
        other => other.to_string(),
    };
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
