//! MySQL and MariaDB.
//!
//! `mysql://USER[:PASSWORD]@HOST[:PORT][,HOST...]/DATABASE`; of several hosts the one that takes writes is used, and looked
//! for again after a switch-over.
//!
//! | option | default | meaning |
//! | --- | --- | --- |
//! | `strategy` | `lease` | `lease`: rows that expire; `get-lock`: locks that the server keeps for a connection; `for-update`: rows that a transaction keeps locked |
//! | `table` | `fencelock` | what the tables' names begin with |
//! | `max-connections` | 8 | the most connections of one client; for `get-lock` and `for-update` 32, how many claims may hold or wait in the database at once |
//! | `connect-timeout` | 5s | how long opening may take |
//! | `response-timeout` | 2s | how long each call waits for an answer |
//! | `password-env`, `password-file` | | where the password is, other than in the URL |
//! | `tls` | `require`; on this machine `off` | `require`: encrypted, and the server's certificate must be for this host; `prefer`: encrypted if the server offers it, nothing is checked; `off` (feature `tls`) |
//! | `tls-ca`, `tls-cert`, `tls-key` | the machine's authorities | files in PEM format: the authority to trust, and this client's certificate |
//!
//! Needs MySQL 8.0 or MariaDB 10.2.4 or later, and for its user SELECT, INSERT, UPDATE and DELETE on the tables; CREATE the
//! first time, unless [`schema`] was run by somebody else. Not SUPER or READ ONLY ADMIN, which write to a replica.

mod bound;
mod config;
mod connect;
mod counter;
mod diagnose;
mod lease;
mod line;
mod tables;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Engine, Result, StoreUrl};
use fencelock_sql::bound::Bound;
use fencelock_sql::server::Server;
use mysql_async::Conn;

use config::{Config, Strategy};

/// Opens the store that a URL `mysql://...` names; makes its tables if they are missing.
///
/// # Errors
/// [`Error::Config`](fencelock_core::Error::Config) if the URL or the server has what it should not,
/// [`Error::Refused`](fencelock_core::Error::Refused) without a right that is needed,
/// [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no server that takes writes answers in time.
///
/// # Cancel safety
/// May be dropped: nothing is held yet.
pub async fn connect(url: StoreUrl) -> Result<Arc<dyn Engine>> {
    let config = Config::from_url(url)?;
    let settings = config.settings;
    match config.strategy {
        Strategy::Lease => {
            let server = Server::open(lease::MySql::new(config), settings).await?;
            Ok(Arc::new(server))
        }
        Strategy::GetLock | Strategy::ForUpdate => {
            Ok(Arc::new(Bound::open(bound::Ways::new(config)).await?))
        }
    }
}

/// The statements that make the tables, for users who may not; `table` is the URL's option of that
/// name, `fencelock` by default.
#[must_use]
pub fn schema(table: &str) -> String {
    tables::Tables::new(table).script()
}

/// Ends a connection behind, without waiting for a server that may not answer.
fn hang_up(conn: Conn) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            // Its end is all that matters.
            let _ = tokio::time::timeout(Duration::from_secs(1), conn.disconnect()).await;
        });
    }
}
