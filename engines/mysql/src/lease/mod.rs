//! `strategy=lease`: the lease engine's requests in the SQL of MySQL and MariaDB.
//!
//! An exclusive holder is stored in the gate; shared holders and permits have a table of their own. A free lock is acquired
//! by inserting its gate, which also draws the token. A token drawn by an INSERT that then waits for the row would be lower
//! than one that was drawn and granted meanwhile. So before a grant the transaction locks one of the rows for draws, chosen
//! by a hash of the lock's name. Held locks and waiters lock none of them.

mod acquire;
mod connection;
mod engine;
mod inspect;
mod release;
mod renew;
mod statements;
mod stored;
mod write;

pub(crate) use connection::Leases;
