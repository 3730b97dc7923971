//! The lease engine on a database server: the rules of [`lease`](crate::lease), over any [`Dialect`].
//!
//! A lock is a *gate* (one row per name, with a version) and the rows of its holders and its queue. No client keeps a
//! transaction open between two requests. It reads without locking, applies the rules, and writes in a single request. That
//! takes effect only if the gate's version is still the one that was read. So a client that is stopped or cut off between two
//! requests keeps nothing locked.

mod acquire;
mod background;
mod change;
mod dialect;
mod engine;
mod entry;
mod error;
mod hosts;
mod inspect;
mod message;
mod pool;
mod release;
mod renew;
mod second_server;
mod state;
mod stored;
mod wait;

pub use change::{Change, Write, Written};
pub use dialect::Dialect;
pub use engine::LeaseEngine;
pub use error::Failure;
pub use hosts::{Host, hosts};
pub use message::{HANDOFF_WINDOW, Message, PushedGrant};
pub use second_server::{SecondServer, Servers};
pub use stored::{DbInstant, Queued, Snapshot, first_version, micros};
