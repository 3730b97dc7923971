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

use std::fmt;

use async_trait::async_trait;
use fencelock_core::engine::{
    Claim, Cursor, Event, Evict, Grant, HeldClaim, Leave, LockView, Page, Place, Renewal, Standing,
    Withdrawn,
};
use fencelock_core::{Clock, Engine, Finding, LockName, Promises, Result, StoreUrl, Token};
use fencelock_sql::bound::Bound;
use fencelock_sql::server::{Server as LeaseEngine, Settings};

use config::{Config, Strategy};
use connection::Server;

/// The engine on PostgreSQL. Clients whose URLs name the same database and the same strategy share its locks.
pub struct Postgres(Box<dyn Engine>);

impl Postgres {
    /// The statements that make the tables, for users who may not; see [`Postgres::open`].
    #[must_use]
    pub const fn schema() -> &'static str {
        connection::SCHEMA
    }

    /// Opens the database that a URL names, and makes its tables if they are missing.
    ///
    /// # Errors
    /// [`Error::Config`](fencelock_core::Error::Config) if the URL has what it should not, or a pooler shares
    /// connections between transactions; [`Error::Refused`](fencelock_core::Error::Refused) for a wrong password or a
    /// missing right; [`Error::Unavailable`](fencelock_core::Error::Unavailable) if no host answers that can be written
    /// to.
    pub async fn open(url: StoreUrl) -> Result<Self> {
        let server = Server::new(Config::from_url(url)?);
        Ok(Self(match server.config.strategy {
            Strategy::Advisory => Box::new(Bound::open(bound::Advisory::new(server)).await?),
            Strategy::Lease => {
                let settings = Settings {
                    connect_timeout: server.config.settings.connect_timeout,
                    response_timeout: server.config.settings.response_timeout,
                    connections: server.config.connections,
                };
                Box::new(LeaseEngine::open(lease::Leases::new(server), settings).await?)
            }
        }))
    }
}

#[async_trait]
impl Engine for Postgres {
    fn promises(&self) -> Promises {
        self.0.promises()
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        self.0.place(claim).await
    }

    async fn changed(&self, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
        self.0.changed(claim, place).await
    }

    async fn renew(&self, held: &[HeldClaim]) -> Vec<Renewal> {
        self.0.renew(held).await
    }

    async fn withdraw(&self, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        self.0.withdraw(claim, how).await
    }

    async fn events(&self) -> Result<Event> {
        self.0.events().await
    }

    async fn look(&self, name: &LockName, unlike: Option<Option<Token>>) -> Result<LockView> {
        self.0.look(name, unlike).await
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        self.0.list(prefix, at, limit).await
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        self.0.evict(name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.0.diagnose().await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }
}

impl fmt::Display for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({})", self.0)
    }
}
