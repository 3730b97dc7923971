//! Engines around engines. A layer changes some calls and passes the others on; see [`Layer`].

mod fault;
mod layer;
mod meter;
mod prefix;
#[cfg(feature = "metrics")]
mod store_calls;

pub use fault::{Fault, FaultHandle, Trouble};
pub use layer::Layer;
pub use meter::{Counts, Meter};
pub use prefix::Prefix;
#[cfg(feature = "metrics")]
pub(crate) use store_calls::StoreCalls;
