//! Locks in SQL databases: a lease is a row, and a line is rows with tickets.
//!
//! What the rows mean stands in one place for all dialects; a dialect reads and writes them. So far there is SQLite,
//! the embedded default store.

#[cfg(feature = "sqlite")]
mod lease;
#[cfg(feature = "sqlite")]
mod sqlite;

#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;
