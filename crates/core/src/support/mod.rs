//! What engines share. Nothing here talks to a store.

pub mod admission;
mod clock_watch;

pub use clock_watch::{Asked, ClockWatch};
