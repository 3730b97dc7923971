//! PostgreSQL, 14 or later.
//!
//! | option of `postgres://USER[:PASSWORD]@HOST[:PORT][,HOST…][/DATABASE]` | default | meaning |
//! | --- | --- | --- |
//! | `strategy` | lease | `lease` or `advisory` |
//! | `connect-timeout` | 5s | for the first connection |
//! | `response-timeout` | 2s | for one answer, and for each later connection |
//! | `max-connections` | 8 | the most connections of one client, beside one that listens; for `advisory` 32, how many claims may hold or wait in the database at once |
//! | `password-env`, `password-file` | none | the variable or the file that has the password, to keep it out of the URL |
//! | `tls` | require; on this machine off | `require`: encrypted, and the server's certificate must be for this host; `prefer`: encrypted if the server offers it, nothing is checked; `off` (feature `tls`) |
//! | `tls-ca`, `tls-cert`, `tls-key` | the machine's authorities | files in PEM format: the authority to trust, and this client's certificate |
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
mod server;
mod tables;
mod tls;

use std::sync::Arc;

use fencelock_core::{Engine, Result, StoreUrl};
use fencelock_sql::bound::BoundEngine;
use fencelock_sql::server::LeaseEngine;

use config::{Config, Strategy};
use connection::Hosts;

/// Opens the store that a URL `postgres://...` names. Creates its tables if they are missing. Clients whose URLs name the same
/// database and the same strategy share its locks.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config) if the URL is wrong, or a pooler shares
/// connections between transactions; [`Error::Refused`](fencelock_core::Error::Refused) for a wrong password or a
/// missing right; [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no host that takes writes answers.
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
pub async fn connect(url: StoreUrl) -> Result<Arc<dyn Engine>> {
    let hosts = Hosts::new(Config::from_url(url)?);
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
