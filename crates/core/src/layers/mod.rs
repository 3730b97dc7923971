//! Engines around engines. A layer changes some calls and passes the others on; see [`Layer`].

mod breaker;
mod fault;
mod gate;
mod layer;
mod meter;
mod prefix;
#[cfg(feature = "metrics")]
mod store_calls;

pub use breaker::Breaker;
pub use fault::{Fault, FaultHandle, Trouble};
pub use gate::Away;
pub(crate) use gate::was_not_asked;
pub use layer::Layer;
pub use meter::{Counts, Meter};
pub use prefix::Prefix;
#[cfg(feature = "metrics")]
pub(crate) use store_calls::StoreCalls;
