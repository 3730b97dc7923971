//! The protocols as models, searched exhaustively for a violation.

pub mod claim;
pub mod quorum_token;
