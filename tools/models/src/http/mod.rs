//! A claim's life through replicas of the lock service that keep only open polls, on one store with leases: request,
//! poll, hand-off by push, give-back of a push that no client received, first grant of one claim window, renewal,
//! release.
//!
//! Each client has one claim and sends every request through either of two replicas. Requests, pushes, give-backs and
//! answers may be late without limit, overtake each other, or never arrive; some requests arrive twice. A stopped
//! replica or client is one whose messages are late. Time passes in ticks that all parties see alike.

mod client;
mod model;
mod state;
mod store;

pub use state::{Answer, Client, Holder, Http, Kind, Message, Mutant, Stage, Step, Waiter, World};
