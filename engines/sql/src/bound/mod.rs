//! Connection-bound locks: the database keeps a hold for one connection and frees it when that connection ends. The engine
//! here is generic; a [`Dialect`] knows the statements.
//!
//! * Each claim that holds or waits in the database has a connection of its own, at most `max-connections` of them. Further
//!   waiting claims queue in this process, first come, first served. A claim with a connection first tries without waiting. It
//!   waits in the database only if another claim holds the lock.
//! * The dialect sets the claim's ttl as the idle timeout of its connection, and a renewal is a sign of life. If the connection is
//!   silent for the ttl, the server ends it. So the server keeps the lease, as with any other engine. When the connection ends,
//!   the lock is free at once, and the holder learns of it when it finds the connection closed.
//! * A claim waits in a statement that blocks in the server. After such a grant the client must give a sign of life within
//!   [`CLAIM_WINDOW`]. So a waiter that died or was stopped does not delay the others.
//! * The token is drawn on the same connection, after the lock was acquired. A moment later the engine writes a record of the
//!   hold, or of the wait in the database, on another connection, the control connection. So short holds and waits cost nothing
//!   more. A record is valid only while the connection that it names is open.
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
