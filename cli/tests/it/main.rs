//! The command as its users see it: real processes, real stores, a real terminal.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bed;
mod codes;
mod death;
mod doctor;
mod exit_codes;
mod hold;
mod inputs;
mod inspect;
mod nested;
#[cfg(feature = "redis")]
mod redis;
mod run;
mod terminal;
#[cfg(feature = "zookeeper")]
mod zookeeper;
