//! The core of fencelock: locks, independent of the server that keeps them. It has no network code.
//!
//! Users should use the crate `fencelock`, which adds the engines and `connect`. Authors of an engine need [`engine`],
//! [`support`] and [`layers`].

mod acquire;
mod acquiring;
mod all;
mod client;
mod election;
pub mod engine;
mod guard;
mod health;
pub mod layers;
mod lock;
mod memory;
#[cfg(fencelock_planted)]
#[doc(hidden)]
pub mod planted;
mod runtime;
mod semaphore;
pub mod support;
mod types;

pub use acquire::{Acquire, DEFAULT_TTL};
pub use acquiring::Acquiring;
pub use all::{AcquireAll, Guards};
pub use client::{Client, ClientBuilder, DEFAULT_BATCH};
pub use election::{Campaign, Election, Leader, Leaders, Leadership};
pub use engine::{
    Durability, Engine, Evict, Finding, Floor, HolderView, Inspect, LeaseKind, LockView, Order,
    Promises, Purpose, StoreChange, StoreUrl, UrlHost, WaiterView, Wake,
};
pub use guard::{Guard, Held};
pub use health::Heartbeat;
pub use lock::Lock;
pub use memory::Memory;
pub use runtime::observer::Observer;
pub use semaphore::Semaphore;
/// What [`Guard::cancellation_token`] returns.
pub use tokio_util::sync::CancellationToken;
pub use types::{
    BootInstant, Cause, ClaimId, ClaimIds, Clock, ConfigPart, Error, LockName, LossReason,
    MAX_NAME_BYTES, Mode, Owner, Release, Result, Sequencer, Token, Tokens, in_words,
    parse_duration,
};
