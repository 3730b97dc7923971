//! Why counts could not be had.

/// Any error: it is only shown.
pub(crate) type Failed = Box<dyn std::error::Error>;
