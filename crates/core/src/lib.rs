//! The core of fencelock: what a lock is, whatever server it lives on. No network code.
//!
//! Users want the crate `fencelock`, which adds the engines and `connect`. Authors of an engine want [`Engine`].

mod all;
mod client;
mod clock;
mod clock_watch;
mod downgrade;
mod drive;
mod duration;
mod election;
pub mod engine;
mod error;
mod guard;
mod health;
mod hold;
mod join;
mod keeper;
pub mod layers;
mod line;
mod memory;
mod name;
mod observe;
mod owner;
#[cfg(fencelock_planted)]
#[doc(hidden)]
pub mod planted;
mod promises;
mod redact;
mod semaphore;
#[cfg(feature = "serde")]
mod serialize;
mod store_url;
mod token;
mod wish;

pub use all::{Guards, WishAll};
pub use client::{Client, ClientBuilder, DEFAULT_BATCH, DEFAULT_TTL};
pub use clock::{BootInstant, Clock};
pub use clock_watch::{Asked, ClockWatch};
pub use duration::{in_words, parse_duration};
pub use election::{Campaign, Election, Leader, Leaders, Leadership};
pub use engine::{Engine, Evict, HolderView, LockView, Mode, WaiterView};
pub use error::{Cause, Error, Result};
pub use guard::{Guard, Held, Release};
pub use health::Heartbeat;
pub use memory::Memory;
pub use name::{LockName, MAX_NAME_BYTES};
pub use observe::Observer;
pub use owner::Owner;
pub use promises::{Durability, Finding, LeaseKind, Limit, Order, Promises, Purpose, Wake};
pub use semaphore::Semaphore;
pub use store_url::{StoreUrl, UrlHost};
pub use token::{ClaimId, ClaimIds, Sequencer, Token, Tokens};
pub use wish::{Locking, Wish};
