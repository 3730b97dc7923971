//! Engines around engines: each implements every method of [`Engine`](crate::Engine) and passes it on.

mod fault;
mod meter;
mod prefix;

pub use fault::{Fault, FaultHandle, Trouble};
pub use meter::{Counts, Meter};
pub use prefix::Prefix;
