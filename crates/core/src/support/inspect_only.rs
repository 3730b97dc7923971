//! Stores that were opened for inspection only.

use crate::types::Error;

/// The error for a request that would change such a store.
///
/// ```
/// # use fencelock_core::support::inspect_only;
/// let error = inspect_only("memory:", "taking a lock");
/// assert_eq!(error.as_str(), "unsupported");
/// ```
pub fn inspect_only(store: impl ToString, what: &'static str) -> Error {
    let why = "it was opened for inspection only; open it again without inspect_only";
    Error::unsupported(store, what, why)
}
