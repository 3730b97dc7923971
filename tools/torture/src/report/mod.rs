//! The result of a run, for people.

pub(crate) mod html;
pub(crate) mod table;
pub(crate) mod text;
