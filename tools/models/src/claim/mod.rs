//! A claim's life at one store, as a model: request, queue, hand-off by push, claim window, renewal, release, abandonment
//! and lock-delay. Messages may be late without limit, overtake each other, or never arrive.
//!
//! Time passes in ticks that every client sees alike; a margin for drift would only add ticks. A stopped process is a
//! process that takes no step.

mod client;
mod model;
mod state;
mod store;

pub use state::{Claims, Client, Message, Mutant, Stage, Step, Store, World};
