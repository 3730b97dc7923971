//! A claim's life through replicas of the lock service that keep nothing but open polls, before one store with leases: request,
//! poll, hand-off by push, give-back of a push that nobody heard, first grant of one claim window, renewal, release.
//!
//! Each client has one claim and sends every request through any of two replicas. Requests, pushes, give-backs and answers may be
//! late without limit, overtake each other, or never arrive; some requests arrive twice. A replica or a client that is stopped is
//! one whose messages are late. Time passes in ticks that all see alike.

mod client;
mod model;
mod state;
mod store;

pub use state::{Answer, Client, Holder, Http, Kind, Message, Mutant, Stage, Step, Waiter, World};
