//! What the engines on SQL databases share: the lease algorithm, and for those on servers the engines themselves.
//!
//! What the rows of a lock mean stands in one place ([`lease`]); a dialect reads and writes them. SQLite needs no more. The
//! feature `server` adds what MySQL and PostgreSQL share: leases in tables ([`server`]), and locks that hang on a
//! connection ([`bound`]). This crate knows no driver.

#[cfg(feature = "server")]
pub mod bound;
pub mod lease;
pub mod naps;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod tls;

use fencelock_core::Error;
use fencelock_core::engine::Renewal;

/// The same failure for each of the holds in a request that failed.
pub fn unknown(store: &impl std::fmt::Display, error: Error, count: usize) -> Vec<Renewal> {
    let told = error.to_string();
    let again = || Error::unavailable(store, "renew holds", told.clone());
    let mut renewals: Vec<Renewal> = (1..count).map(|_| Renewal::Unknown(again())).collect();
    renewals.push(Renewal::Unknown(error));
    renewals
}
