//! Why there are no counts.

/// Any error: it is only shown.
pub(crate) type Failed = Box<dyn std::error::Error>;
