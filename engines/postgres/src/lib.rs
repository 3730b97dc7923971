//! PostgreSQL, 14 or later.
//!
//! [`Options`] say where the database is and how locks are kept in it; each constructor and setter names its
//! form in a URL.
//!
//! Of several hosts the client uses the one that takes writes, and finds it again after a switch-over. Each host has its
//! share of the shorter of the two timeouts.

mod advisory;
#[cfg(feature = "tls")]
mod any_certificate;
mod config;
mod connection;
mod diagnose;
mod error;
mod hosts;
mod lease;
mod options;
mod record;
mod server;
mod tables;
mod tls;

use std::sync::Arc;

use fencelock_core::{Engine, Result};
use fencelock_sql::bound::BoundEngine;
use fencelock_sql::server::LeaseEngine;

use config::Config;
use connection::Hosts;
#[doc(inline)]
pub use fencelock_sql::tls::Mode as Tls;
pub use options::{Options, Strategy};

fencelock_core::store_options!(|options| Config::new(options), connect(options).await);

/// Opens the store that the options, or a URL `postgres://...`, name. Creates its tables if they are missing. Clients of the same
/// database and the same strategy share its locks.
///
/// # Errors
/// - [`Error::Config`](fencelock_core::Error::Config) if an option is wrong, or a pooler shares connections between
///   transactions.
/// - [`Error::Refused`](fencelock_core::Error::Refused) for a wrong password or a missing right.
/// - [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no host that takes writes answers.
///
/// # Cancel safety
/// May be dropped: no lock is held yet.
pub async fn connect(options: impl Into<Options> + Send) -> Result<Arc<dyn Engine>> {
    let hosts = Hosts::new(Config::new(options.into())?);
    let config = &hosts.config;
    match config.strategy {
        Strategy::Advisory => {
            let dialect = advisory::Advisory::new(hosts);
            Ok(Arc::new(BoundEngine::open(dialect).await?))
        }
        Strategy::Lease => {
            let settings = config.settings;
            let dialect = lease::Leases::new(hosts);
            Ok(Arc::new(LeaseEngine::open(dialect, settings).await?))
        }
    }
}

/// The statements that create the tables, for an administrator; see [`connect`].
#[must_use]
pub const fn schema() -> &'static str {
    tables::SCHEMA
}
