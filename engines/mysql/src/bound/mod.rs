//! The connection-bound strategies: `get-lock` takes a lock of the server's own for each name, `for-update` a row lock in an
//! open transaction.
//!
//! * `get-lock` hashes the name together with those of the database and the tables: the server has one name space for all
//!   its databases, takes 64 characters, and ignores case.
//! * `for-update` locks an existing row, which is inserted first, and deleted by a clean-up when nobody locks it. Rows are
//!   found by the primary key and locked at READ COMMITTED, so nothing but the row is locked: no gap, no table.
//! * The server's idle timeout is the lease. It counts in seconds.
//! * The tokens of `get-lock` come from a counter in the server's memory: see [`counter`]. Those of `for-update` come from
//!   AUTO_INCREMENT, which no rollback takes back: its rows are rolled back, which is cheaper than a commit.

mod connection;
mod counter;
mod engine;
mod for_update;
mod get_lock;
mod get_lock_sql;
mod inspect;
mod record;
mod section;
mod store_record;
mod stored;
mod tokens;

pub(crate) use connection::BoundLocks;
