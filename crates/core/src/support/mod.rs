//! Common parts of the engines. They send nothing to a store.

pub mod admission;
mod backoff;
mod clock_watch;
mod contention;
mod mutex;

pub use backoff::Backoff;
pub use clock_watch::{Asked, ClockWatch};
pub use contention::{Contention, NameContention, spread};
pub use mutex::Mutex;
