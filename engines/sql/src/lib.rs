//! Locks in SQL databases: a lease is a row, and a line is rows with tickets.
//!
//! What the rows mean stands in one place for all dialects; a dialect reads and writes them: SQLite, the embedded default
//! store, and the servers, which share one engine. Beside them stand locks that hang on a connection, and the optimistic way
//! without a lock: [`versioned`] rows.

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod bound;
#[cfg(feature = "sqlite")]
mod doors;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod lease;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod naps;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tls;

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub mod versioned;

#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;

/// The same failure for each of the holds in a request that failed.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn unknown(
    store: &impl std::fmt::Display,
    error: fencelock_core::Error,
    count: usize,
) -> Vec<fencelock_core::engine::Renewal> {
    use fencelock_core::engine::Renewal;
    let told = error.to_string();
    let again = || fencelock_core::Error::unavailable(store, "renew holds", told.clone());
    let mut renewals: Vec<Renewal> = (1..count).map(|_| Renewal::Unknown(again())).collect();
    renewals.push(Renewal::Unknown(error));
    renewals
}
