//! How a PostgreSQL server is set up.

use std::sync::Arc;

use crate::certificates::HERE;
use crate::clock_shim::ClockShim;

/// The setup of a [`Postgres`](crate::Postgres); see [`Postgres::builder`](crate::Postgres::builder).
#[derive(Debug, Default)]
#[must_use = "nothing is started before `start`"]
pub struct PostgresBuilder {
    pub(super) settings: Vec<(String, String)>,
    pub(super) clock: Option<Arc<ClockShim>>,
    pub(super) password: Option<String>,
    pub(super) tls: Option<String>,
    pub(super) rule: Option<String>,
}

impl PostgresBuilder {
    /// Any setting of `postgresql.conf`.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The server uses this clock instead of the machine's.
    pub fn clock(mut self, clock: &Arc<ClockShim>) -> Self {
        self.clock = Some(Arc::clone(clock));
        self
    }

    /// Clients on TCP must give this password. There is none by default.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Offers TLS, with a certificate for `localhost` and 127.0.0.1 of its own authority ([`Postgres::ca`](crate::Postgres::ca)). Needs the
    /// command `openssl`.
    pub fn tls(self) -> Self {
        self.tls_for(HERE)
    }

    /// The same with other names in the certificate, such as `DNS:db.example`.
    pub fn tls_for(mut self, names: &str) -> Self {
        self.tls = Some(names.to_owned());
        self
    }

    /// The line of `pg_hba.conf` that lists who may connect by TCP, such as `hostssl all all 127.0.0.1/32 trust`.
    pub fn rule(mut self, line: &str) -> Self {
        self.rule = Some(line.to_owned());
        self
    }
}
