//! The protocols as models, searched exhaustively for a bad end.

pub mod claim;
pub mod quorum_token;
