//! The steps of a change of the map, each of which may be interrupted and repeated by anybody.
//!
//! There is no lock on the change. Whoever makes a step brings all stores to one record first ([`records`]), waits on its own
//! clock until what others know of the record before it can harm no more, and then writes to the arbiter, which decides.

mod change;
mod floor;
mod pairs;
mod prepare;
mod records;
mod status;
mod steps;

pub use change::{How, Migration, Stepped};
pub use pairs::Unpaired;
pub use prepare::Prepare;
pub use status::{Status, StoreStatus};
