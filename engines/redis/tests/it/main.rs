//! The engines on real servers: each of their own rules, and the fault against which it protects.

// A failing `unwrap` names its line.
#![allow(clippy::unwrap_used)]

mod access;
mod advice;
mod basics;
mod cluster;
mod delays;
mod failover;
mod faults;
mod foreign;
mod handoff;
#[path = "../history/mod.rs"]
mod history;
mod inspect;
mod inspect_only;
mod late;
mod options;
mod redlock;
mod restore;
mod sentinel;
mod shared;
mod support;
mod together;
mod tokens;
mod uptime;
