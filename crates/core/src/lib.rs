//! The core of fencelock: what a lock is, whatever server it lives on. No network code.
//!
//! Users want the crate `fencelock`, which adds the engines and `connect`. Authors of an engine want [`engine`],
//! [`support`] and [`layers`].

mod all;
mod client;
mod downgrade;
mod drive;
mod election;
pub mod engine;
mod guard;
mod health;
mod hold;
mod join;
mod keeper;
pub mod layers;
mod line;
mod memory;
mod observe;
#[cfg(fencelock_planted)]
#[doc(hidden)]
pub mod planted;
mod runtime;
mod semaphore;
pub mod support;
mod types;
mod wish;

pub use all::{Guards, WishAll};
pub use client::{Client, ClientBuilder, DEFAULT_BATCH, DEFAULT_TTL};
pub use election::{Campaign, Election, Leader, Leaders, Leadership};
pub use engine::{
    Durability, Engine, Evict, Finding, HolderView, Inspect, LeaseKind, LockView, Order, Promises,
    Purpose, StoreUrl, UrlHost, WaiterView, Wake,
};
pub use guard::{Guard, Held};
pub use health::Heartbeat;
pub use memory::Memory;
pub use observe::Observer;
pub use semaphore::Semaphore;
pub use support::{Asked, ClockWatch};
pub use types::{
    BootInstant, Cause, ClaimId, ClaimIds, Clock, Error, LockName, LossReason, MAX_NAME_BYTES,
    Mode, Owner, Release, Result, Sequencer, Token, Tokens, in_words, parse_duration,
};
pub use wish::{Locking, Wish};
