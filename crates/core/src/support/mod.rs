//! Common parts of the engines. They send nothing to a store.

pub mod admission;
mod backoff;
mod clock_watch;
mod contention;
mod inspect_only;
mod mutex;

pub use backoff::{Backoff, jitter};
pub use clock_watch::{Asked, ClockWatch};
pub use contention::{Contention, NameContention, spread};
pub use inspect_only::inspect_only;
pub use mutex::Mutex;
