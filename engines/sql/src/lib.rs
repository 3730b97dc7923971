//! The common parts of the engines on SQL databases.
//!
//! The lease algorithm is in one place ([`lease`]); each dialect reads and writes the rows. SQLite needs no more. The feature
//! `server` adds what MySQL and PostgreSQL share: leases in tables ([`server`]), and connection-bound locks ([`bound`]). This
//! crate knows no driver.

#[cfg(feature = "server")]
pub mod bound;
pub mod lease;
#[cfg(feature = "server")]
mod page;
pub mod poll;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
mod settings;
#[cfg(feature = "server")]
pub mod tls;

use fencelock_core::Error;
use fencelock_core::engine::{RecordChange, Renewal};

#[cfg(feature = "server")]
pub use page::page_of;
#[cfg(feature = "server")]
pub use settings::Settings;

/// The same failure for each of the holds in a request that failed.
pub fn unknown(store: &impl std::fmt::Display, error: Error, count: usize) -> Vec<Renewal> {
    let cause = error.to_string();
    let repeated = || Error::unavailable(store, "renewing holds", cause.clone());
    let mut renewals: Vec<Renewal> = (1..count).map(|_| Renewal::Unknown(repeated())).collect();
    renewals.push(Renewal::Unknown(error));
    renewals
}

/// What a call of `record` does, for errors.
pub const fn record_action(change: Option<&RecordChange>) -> &'static str {
    match change {
        None => "reading the record",
        Some(_) => "changing the record",
    }
}
