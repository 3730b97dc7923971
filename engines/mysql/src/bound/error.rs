//! Why a request on a connection-bound session failed.

use fencelock_core::Error;

#[derive(Debug)]
pub(super) enum BoundError {
    /// A conflict: a retry may mend it. The transaction may still be open.
    Conflict(Error),
    /// The tables do not exist.
    NoTables(Error),
    /// Anything else. The connection is usable unless the error is `Unavailable`.
    Final(Error),
}
