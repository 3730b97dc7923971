//! `strategy=lease`: the lease engine's requests in the SQL of MySQL and MariaDB.
//!
//! An exclusive holder is stored in the gate; shared holders and permits have a table of their own. A free lock is acquired
//! by inserting its gate, which also draws the token. A token drawn by an INSERT that then waits for the row would be lower
//! than one that was drawn and granted meanwhile. So before a grant the transaction locks one of the rows for draws, chosen
//! by a hash of the lock's name. Held locks and waiters lock none of them.
//!
//! A client with waiters keeps a connection that waits in the server, its ear. Each waiter has a second row with the ear's
//! name. If the next waiter has an ear, a release grants it the lock for a moment, and then ends the ear's wait by KILL QUERY.
//! A client whose ear does not work polls.

mod acquire;
mod connection;
mod ears;
mod engine;
mod inspect;
mod listen;
mod record;
mod release;
mod renew;
mod statements;
mod stored;
mod wake;
mod wake_others;
mod write;

pub(crate) use connection::Leases;
