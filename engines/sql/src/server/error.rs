//! Why a request failed, by what the engine does about it.

use fencelock_core::{Cause, Error};

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// A deadlock, a lock wait that took too long, a failed serialization: rolled back, try again.
    Conflict(Cause),
    /// The connection has ended. It is unknown whether the request took effect.
    Disconnected(Cause),
    /// No answer in time. It is unknown whether the request took effect, and the connection can no longer be used.
    NoAnswer,
    /// This server takes no writes (any more): find the one that does.
    ReadOnly(Cause),
    /// The tables do not exist.
    NoTables(Cause),
    /// An error for the caller.
    Final(Error),
}
