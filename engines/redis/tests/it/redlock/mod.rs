//! Redlock: five servers of which a majority decides.

mod access;
mod basics;
mod memory;
mod network;
pub(crate) mod nodes;
