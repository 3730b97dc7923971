//! The steps of a change of the map, each of which may be interrupted, and repeated by any administrator.
//!
//! There is no lock on the change. An administrator who makes a step first brings all stores to one record ([`records`]). Then
//! the step waits, by its own clock, until what others know of the record before it can do no harm. Then it writes to the
//! arbiter, which decides.

pub(crate) mod change;
pub(crate) mod floor;
mod pairs;
mod prepare;
pub(crate) mod records;
mod status;
mod steps;

pub use change::{How, Migration, Stepped};
pub use pairs::Unpaired;
pub use prepare::Prepare;
pub use status::{Status, StoreStatus};
