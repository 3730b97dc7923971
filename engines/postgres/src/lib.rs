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
//! With several hosts, the one that can be written to is used, and found again after a switch-over. Each has its share of the
//! shorter of the two times to answer in.

#[cfg(feature = "tls")]
mod anybody;
mod bound;
mod config;
mod connection;
mod diagnose;
mod lease;
mod limits;
mod tls;

use std::sync::Arc;

use fencelock_core::{Engine, Result, StoreUrl};
use fencelock_sql::bound::Bound;
use fencelock_sql::server::{Server as LeaseEngine, Settings};

use config::{Config, Strategy};
use connection::Server;

/// Opens the store that a URL `postgres://...` names; makes its tables if they are missing. Clients whose URLs name the same
/// database and the same strategy share its locks.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config) if the URL has what it should not, or a pooler shares
/// connections between transactions; [`Error::Refused`](fencelock_core::Error::Refused) for a wrong password or a
/// missing right; [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no host answers that can be written
/// to.
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
pub async fn connect(url: StoreUrl) -> Result<Arc<dyn Engine>> {
    let server = Server::new(Config::from_url(url)?);
    match server.config.strategy {
        Strategy::Advisory => Ok(Arc::new(Bound::open(bound::Advisory::new(server)).await?)),
        Strategy::Lease => {
            let settings = Settings {
                connect_timeout: server.config.settings.connect_timeout,
                response_timeout: server.config.settings.response_timeout,
                connections: server.config.connections,
            };
            let engine = LeaseEngine::open(lease::Leases::new(server), settings).await?;
            Ok(Arc::new(engine))
        }
    }
}

/// The statements that make the tables, for users who may not; see [`connect`].
#[must_use]
pub const fn schema() -> &'static str {
    connection::SCHEMA
}
