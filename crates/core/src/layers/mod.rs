//! Engines around engines. A layer changes some calls and passes the others on; see [`Layer`].

mod fault;
mod layer;
mod meter;
mod prefix;

pub use fault::{Fault, FaultHandle, Trouble};
pub use layer::Layer;
pub use meter::{Counts, Meter};
pub use prefix::Prefix;
