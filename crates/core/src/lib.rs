//! The core of fencelock: what a lock is, whatever server it lives on. No network code.
//!
//! Users want the crate `fencelock`, which adds the engines and `connect`. Authors of an engine want [`Engine`].

mod clock;
mod duration;
pub mod engine;
mod error;
mod name;
mod promises;
mod store_url;
mod token;

pub use clock::{BootInstant, Clock};
pub use duration::parse_duration;
pub use engine::{Engine, Mode};
pub use error::{Cause, Error, Result};
pub use name::{LockName, MAX_NAME_BYTES};
pub use promises::{Durability, LeaseKind, Limit, Order, Promises, Purpose, Wake};
pub use store_url::StoreUrl;
pub use token::{ClaimId, ClaimIds, Sequencer, Token, Tokens};
