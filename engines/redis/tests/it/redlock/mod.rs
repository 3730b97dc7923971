//! Redlock: five servers of which a majority decides.

mod access;
mod basics;
mod memory;
mod network;
mod nodes;
