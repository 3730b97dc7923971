//! Connection-bound locks: the database keeps a hold for one connection and frees it when that connection ends. The engine
//! here is generic; a [`Dialect`] knows the statements.
//!
//! * Each claim that holds or waits in the database has a connection of its own, at most `max-connections` of them. Further
//!   waiting claims queue in this process, first come, first served. A claim with a connection first tries without waiting. It
//!   waits in the database only if another claim holds the lock.
//! * The server ends a connection that is silent for the claim's ttl: the dialect sets that as the connection's idle
//!   timeout, and a renewal is a sign of life. So the server keeps the lease, as with any other engine. The lock is also
//!   free at once when the connection ends, and the holder learns of it when it finds the connection closed.
//! * A claim waits in a statement that blocks in the server. After such a grant the client must give a sign of life within
//!   [`CLAIM_WINDOW`], so that a waiter that died or was stopped does not delay the others.
//! * The token is drawn on the same connection, after the lock was acquired. A record of a hold, and of a wait in the database,
//!   is written a moment later on another connection, the control connection, so that short holds and waits cost nothing more.
//!   A record is valid only while the connection that it names is open.
//! * A request whose outcome is unknown is undone: the control connection ends the connection that carried it.

mod acquire;
mod background;
mod control;
mod dialect;
mod engine;
mod entry;
mod inspect;
mod pool;
mod queue;
mod record;
mod release;
mod renew;
mod signal;
mod state;
mod wait;

pub use dialect::{Dialect, Record, SessionId};
pub use engine::BoundEngine;
pub use inspect::{RecordView, views};
pub use signal::CloseSignal;
pub use state::CLAIM_WINDOW;
