//! MySQL and MariaDB.
//!
//! `mysql://USER[:PASSWORD]@HOST[:PORT][,HOST...]/DATABASE`; of several hosts the client uses the one that takes
//! writes, and finds it again after a switch-over.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `strategy` | `lease` | `lease`: rows that expire; `get-lock`: locks that the server keeps for a connection; `for-update`: rows that a transaction keeps locked |
//! | `table` | `fencelock` | prefix of the tables' names |
//! | `max-connections` | 8 | the most connections of one client; for `get-lock` and `for-update` 32, how many claims may hold or wait in the database at once |
//! | `connect-timeout` | 5s | how long opening may take |
//! | `response-timeout` | 2s | how long each call waits for an answer |
//! | `password-env`, `password-file` | | the variable or the file that has the password, to keep it out of the URL |
//! | `tls` | `require`; on this machine `off` | `require`: encrypted, and the server's certificate must be for this host; `prefer`: encrypted if the server offers it, nothing is checked; `off` (feature `tls`) |
//! | `tls-ca`, `tls-cert`, `tls-key` | the machine's authorities | files in PEM format: the authority to trust, and this client's certificate |
//!
//! Needs MySQL 8.0 or MariaDB 10.2.4 or later. The user needs SELECT, INSERT, UPDATE and DELETE on the tables, and CREATE the
//! first time, unless an administrator ran [`schema`]. It should not have SUPER or READ ONLY ADMIN, which may write to a
//! replica.

mod bound;
mod config;
mod connection;
mod diagnose;
mod error;
mod lease;
mod request;
mod server;
mod tables;
mod tls;

use std::sync::Arc;

use fencelock_core::{Engine, Result, StoreUrl};
use fencelock_sql::bound::BoundEngine;
use fencelock_sql::server::LeaseEngine;

use config::{Config, Strategy};

/// Opens the store that a URL `mysql://...` names. Creates its tables if they are missing.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config) if the URL is wrong or the server unsuitable,
/// [`Error::Refused`](fencelock_core::Error::Refused) if the user lacks a right,
/// [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no server that takes writes answers in time.
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
pub async fn connect(url: StoreUrl) -> Result<Arc<dyn Engine>> {
    let config = Config::from_url(url)?;
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

/// The statements that create the tables, for an administrator. `table` is the URL's option of that name, `fencelock` by
/// default.
#[must_use]
pub fn schema(table: &str) -> String {
    tables::Tables::new(table).script()
}
