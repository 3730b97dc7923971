//! The connection-bound strategies: `get-lock` takes a lock of the server's own for each name, `for-update` a row lock in an
//! open transaction.
//!
//! * `get-lock` uses a hash of the name and of the names of the database and the tables. The server has one name space for all
//!   its databases, accepts only 64 characters, and ignores case.
//! * `for-update` locks an existing row. A claim inserts the row first, and a clean-up deletes it when nobody locks it. The
//!   statements find rows by the primary key and lock them at READ COMMITTED. So they lock nothing but the row: no gap, no table.
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
