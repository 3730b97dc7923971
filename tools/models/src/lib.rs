//! The protocols as models, searched exhaustively for a violation.

pub mod bound;
pub mod claim;
pub mod http;
pub mod migrate;
pub mod quorum_token;
