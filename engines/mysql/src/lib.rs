//! MySQL and MariaDB.
//!
//! [`Options`] say where the database is and how locks are kept in it; each constructor and setter names its
//! form in a URL.
//!
//! Needs MySQL 8.0 or MariaDB 10.2.4 or later. The user needs SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE the
//! first time, unless an administrator ran [`schema`]. It should not have SUPER or READ ONLY ADMIN, which may write to a
//! replica.

mod bound;
mod config;
mod connection;
mod diagnose;
mod ear;
mod error;
mod lease;
mod options;
mod record;
mod request;
mod server;
mod tables;
mod tls;

use std::sync::Arc;

use fencelock_core::{Engine, Result};
use fencelock_sql::bound::BoundEngine;
use fencelock_sql::server::LeaseEngine;

use config::Config;
#[doc(inline)]
pub use fencelock_sql::tls::Mode as Tls;
pub use options::{Options, Strategy};

fencelock_core::store_options!(|options| Config::new(options), connect(options).await);

/// Opens the store that the options, or a URL `mysql://...`, name. Creates its tables if they are missing.
///
/// # Errors
/// - [`Error::Config`](fencelock_core::Error::Config) if an option is wrong or the server unsuitable.
/// - [`Error::Refused`](fencelock_core::Error::Refused) if the user lacks a right.
/// - [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no server that takes writes answers in time.
///
/// # Cancel safety
/// May be dropped: no lock is held yet.
pub async fn connect(options: impl Into<Options> + Send) -> Result<Arc<dyn Engine>> {
    let config = Config::new(options.into())?;
    let settings = config.settings;
    match config.strategy {
        Strategy::Lease => {
            let engine = LeaseEngine::open(lease::Leases::new(config), settings).await?;
            Ok(Arc::new(engine))
        }
        Strategy::GetLock | Strategy::ForUpdate => {
            let dialect = bound::BoundLocks::new(config);
            Ok(Arc::new(BoundEngine::open(dialect).await?))
        }
    }
}

/// The statements that create the tables, for an administrator. `table` is the option of that name, `fencelock` by default.
#[must_use]
pub fn schema(table: &str) -> String {
    tables::Tables::new(table).script()
}
