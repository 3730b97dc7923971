//! The typed options.

use fencelock_core::engine::host_and_port;
use fencelock_core::{StoreUrl, server_setters, setters};
use fencelock_sql::tls::{MODES, Mode};
use tokio_postgres::Socket;
use tokio_postgres::config::{Config, Host};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use crate::tls::Connector;

/// How locks are kept; [`promises`](fencelock_core::Client::promises) of an opened client says what that promises. Locks of
/// different strategies do not exclude each other.
///
/// ```
/// use fencelock_postgres::{Options, Strategy};
///
/// // The server frees such a lock as soon as it notices that the client's connection has ended.
/// let options = Options::new(["db.internal"]).strategy(Strategy::Advisory);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Rows with an expiry.
    Lease,
    /// An advisory lock of a session.
    Advisory,
}

pub(crate) const DEFAULT_PORT: u16 = 5432;

pub(crate) const STRATEGIES: [(&str, Strategy); 2] =
    [("lease", Strategy::Lease), ("advisory", Strategy::Advisory)];

/// Where the database is, and how locks are kept in it: the options of a URL, with types.
///
/// ```no_run
/// use fencelock_postgres::Options;
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["db1.internal", "db2.internal"])
///     .database("locks")
///     .user("fencelock")
///     .password_env("DB_PASSWORD")
///     .tls_ca("/etc/fencelock/ca.pem");
/// let engine = fencelock_postgres::connect(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// Opening the store refuses options that cannot be used.
///
/// # Configurations of the driver
/// A `tokio_postgres::Config` may set address, database, credentials and everything else, and fencelock opens connections with
/// it. A pool or an open connection cannot be used. A pool replaces a broken connection silently, but a hold may end with its
/// connection, so fencelock must notice.
///
/// ```no_run
/// use fencelock_postgres::Options;
///
/// # fn example() -> Result<(), tokio_postgres::Error> {
/// # let connector = tokio_postgres::NoTls;
/// let options = Options::from_config("host=db1.internal dbname=locks user=fencelock".parse()?)
///     .other_host("host=db2.internal dbname=locks user=fencelock".parse()?)
///     .tls_connector(connector);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    pub(crate) own: Own,
}

/// The driver's objects that a program configured itself.
#[derive(Clone, Default)]
pub(crate) struct Own {
    /// One per host.
    pub(crate) configs: Vec<Config>,
    pub(crate) connector: Option<Connector>,
}

impl Options {
    /// A database. Each host is `HOST`, `HOST:PORT` or the directory of a socket; the default port is 5432. Of several hosts the
    /// client uses the one that takes writes, and finds it again after a switch-over. In a URL:
    /// `postgres://HOST:PORT,HOST:PORT`.
    ///
    /// ```
    /// # use fencelock_postgres::Options;
    /// let options = Options::new(["db1.internal", "db2.internal:5433"]).database("locks");
    /// ```
    pub fn new(hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("postgres", hosts, "").into()
    }

    /// The database of a configuration of the driver, with one host. Without [`tls_connector`](Self::tls_connector) its
    /// connections are not encrypted.
    #[must_use]
    pub fn from_config(config: Config) -> Self {
        let url = StoreUrl::new(
            "postgres",
            hosts(&config),
            config.get_dbname().unwrap_or_default(),
        );
        let own = Own {
            configs: vec![config],
            connector: None,
        };
        Self { url, own }
    }

    /// Another host of the same database, after [`from_config`](Self::from_config).
    #[must_use]
    pub fn other_host(mut self, config: Config) -> Self {
        self.own.configs.push(config);
        self.url.set_hosts(self.own.configs.iter().flat_map(hosts));
        self
    }

    /// Encrypts the connections of the driver's configurations, as their `ssl_mode` says.
    #[must_use]
    pub fn tls_connector<T>(mut self, connector: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send + 'static,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send + 'static,
    {
        self.own.connector = Some(Connector::own(connector));
        self
    }

    /// The name of the database; by default that of the user. In a URL: the path.
    ///
    /// ```
    /// # use fencelock_postgres::Options;
    /// let options = Options::new(["db1.internal"]).database("locks");
    /// ```
    #[must_use]
    pub fn database(mut self, name: impl Into<String>) -> Self {
        match self.own.configs.is_empty() {
            true => self.url.set_path(name),
            // Refused when the store is opened.
            false => self.url.set("database", name),
        }
        self
    }

    server_setters!();

    setters! {
        /// How locks are kept; by default [`Strategy::Lease`].
        strategy(choice Strategy in STRATEGIES) "strategy";
        /// Whether connections are encrypted. By default required to other machines, and off inside this one.
        tls(choice Mode in MODES) "tls";
        /// How long one answer, and each later connection, may take; 2 s by default.
        response_timeout(duration) "response-timeout";
        /// The most connections of one client, besides one that listens: at least 2, 8 by default. For [`Strategy::Advisory`]:
        /// how many claims may hold or wait in the database at once, at least 1, 32 by default.
        max_connections(number) "max-connections";
    }
}

fn hosts(config: &Config) -> Vec<String> {
    let port = config.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
    let with_port = |name: &str| host_and_port(&(name.to_owned(), port));
    let named = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => with_port(name),
        Host::Unix(path) => with_port(&path.to_string_lossy()),
    });
    let named: Vec<String> = named.collect();
    match named.is_empty() {
        true => config
            .get_hostaddrs()
            .iter()
            .map(|address| with_port(&address.to_string()))
            .collect(),
        false => named,
    }
}
