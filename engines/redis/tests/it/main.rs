//! The engine against a real redis-server: every rule of its own that guards against something definite.

// A test that fails here says where.
#![allow(clippy::unwrap_used)]

mod access;
mod advice;
mod basics;
mod cluster;
mod failover;
mod faults;
mod foreign;
mod gates;
mod handoff;
mod inspect;
mod late;
mod looking;
mod redlock;
mod redlock_time;
mod restore;
mod sentinel;
mod shared;
mod started;
mod support;
mod tokens;
