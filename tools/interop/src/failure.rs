//! Why a client has failed.

/// Any error.
pub(crate) type Failure = Box<dyn std::error::Error>;
