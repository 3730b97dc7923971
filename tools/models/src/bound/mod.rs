//! A replica of the lock service on a store whose claims depend on the replica's session: the table by which the
//! replica ends the claims of clients that have gone. Two clients share the session. A heartbeat of either client keeps
//! it alive.
//!
//! Messages may be late without limit, overtake each other, or never arrive. The replica may stop (then it takes no
//! step) and die. Time passes in ticks that all parties see alike.

mod model;
mod replica;
mod state;

pub use state::{Bound, Client, Entry, Kind, Message, Mutant, Stage, Step, World};
