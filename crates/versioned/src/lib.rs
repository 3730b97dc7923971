//! Versioned rows: optimistic concurrency control, without a lock. Read a row with its version, write it only if the version
//! is still the same, and otherwise read again.
//!
//! This fits where conflicts are rare and a repeated attempt costs little. No writer waits for another, and none must
//! be declared dead. Where conflicts are common, a lock is cheaper.
//!
//! [`Versioned`] makes the text of the statements; any driver can run them. What often goes wrong with home-made versions:
//!
//! * *A, B, A*: a comparison of the value instead of the version does not notice that the value was changed and changed
//!   back. Versions only grow.
//! * *Delete and insert*: a new row starts with a version that the old row had. With the triggers of
//!   [`Versioned::triggers`] it starts with another one.
//! * *Writers that ignore the version*: an `UPDATE` that does not increase the version goes unnoticed. The triggers
//!   increase it.
//! * *Several rows*: write all of them in one transaction, and roll it back if one row has changed. Write them in the
//!   same order everywhere. Otherwise deadlocks may occur, which [`retry`] handles like conflicts.
//!
//! ```
//! # use fencelock_versioned::{Version, Versioned};
//! # fn main() -> Result<(), fencelock_core::Error> {
//! let accounts = Versioned::new("accounts")?;
//! assert_eq!(
//!     accounts.select("balance", "id = 7"),
//!     "SELECT version, balance FROM accounts WHERE (id = 7)"
//! );
//! assert_eq!(
//!     accounts.update("balance = 90", "id = 7", Version(26)),
//!     "UPDATE accounts SET balance = 90, version = version + 1 WHERE (id = 7) AND version = 26"
//! );
//! # Ok(())
//! # }
//! ```

mod conflict;
mod retry;
mod versioned;

#[cfg(feature = "mysql")]
pub use conflict::is_mysql_conflict;
#[cfg(feature = "postgres")]
pub use conflict::is_postgres_conflict;
#[cfg(feature = "sqlite")]
pub use conflict::is_sqlite_conflict;
pub use retry::{Attempt, NotWritten, Retry, retry, retry_blocking};
pub use versioned::{Dialect, Version, Versioned};
