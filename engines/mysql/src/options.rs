//! The typed options.

use fencelock_core::engine::host_and_port;
use fencelock_core::{StoreUrl, server_setters, setters};
use fencelock_sql::tls::{MODES, Mode};
use mysql_async::Opts;

/// How locks are kept; [`promises`](fencelock_core::Client::promises) of an opened client says what that promises. Locks of
/// different strategies do not exclude each other.
///
/// ```
/// use fencelock_mysql::{Options, Strategy};
///
/// // The server frees such a lock as soon as it notices that the client's connection has ended.
/// let options = Options::new(["db.internal"], "locks").strategy(Strategy::GetLock);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Rows that expire.
    Lease,
    /// A lock that the server keeps for a connection.
    GetLock,
    /// A row that a transaction keeps locked.
    ForUpdate,
}

pub(crate) const STRATEGIES: [(&str, Strategy); 3] = [
    ("lease", Strategy::Lease),
    ("for-update", Strategy::ForUpdate),
    ("get-lock", Strategy::GetLock),
];

/// Where the database is, and how locks are kept in it: the options of a URL, with types.
///
/// ```no_run
/// use fencelock_mysql::{Options, Strategy};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["db1.internal", "db2.internal"], "locks")
///     .user("fencelock")
///     .password_env("DB_PASSWORD")
///     .tls_ca("/etc/fencelock/ca.pem")
///     .strategy(Strategy::Lease);
/// let engine = fencelock_mysql::connect(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// Opening the store refuses options that cannot be used.
///
/// # Options of the driver
/// `mysql_async::Opts` may set address, database, credentials, TLS and everything else, and fencelock opens connections with
/// them. A pool or an open connection cannot be used. A pool replaces a broken connection silently, but a hold may end with its
/// connection, so fencelock must notice.
///
/// ```no_run
/// use fencelock_mysql::Options;
/// use mysql_async::Opts;
///
/// # fn example() -> Result<(), mysql_async::UrlError> {
/// let options = Options::from_opts(Opts::from_url("mysql://fencelock@db1.internal/locks")?)
///     .other_host(Opts::from_url("mysql://fencelock@db2.internal/locks")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    /// A program's own options of the driver, one for each host.
    pub(crate) own: Vec<Opts>,
}

impl Options {
    /// A database. Of several hosts the client uses the one that takes writes, and finds it again after a switch-over. Each is
    /// `HOST` or `HOST:PORT`; the default port is 3306. In a URL: `mysql://HOST:PORT,HOST:PORT/DATABASE`.
    ///
    /// ```
    /// # use fencelock_mysql::Options;
    /// let options = Options::new(["db1.internal", "db2.internal:3307"], "locks");
    /// ```
    pub fn new(
        hosts: impl IntoIterator<Item = impl Into<String>>,
        database: impl Into<String>,
    ) -> Self {
        StoreUrl::new("mysql", hosts, database).into()
    }

    /// The database of options of the driver. Its pool options are ignored, and `tcp_nodelay`, `max_allowed_packet` and
    /// `wait_timeout` are overwritten.
    #[must_use]
    pub fn from_opts(opts: Opts) -> Self {
        let url = StoreUrl::new("mysql", [host(&opts)], opts.db_name().unwrap_or_default());
        Self {
            url,
            own: vec![opts],
        }
    }

    /// Another host of the same database, after [`from_opts`](Self::from_opts).
    #[must_use]
    pub fn other_host(mut self, opts: Opts) -> Self {
        self.own.push(opts);
        self.url.set_hosts(self.own.iter().map(host));
        self
    }

    server_setters!();

    setters! {
        /// How locks are kept; by default [`Strategy::Lease`].
        strategy(choice Strategy in STRATEGIES) "strategy";
        /// Whether connections are encrypted. By default required to other machines, and off inside this one.
        tls(choice Mode in MODES) "tls";
        /// How long one answer may take; 2 s by default.
        response_timeout(duration) "response-timeout";
        /// The beginning of the names of the tables: at most 48 letters, digits and `_`; `fencelock` by default.
        table(text) "table";
        /// The most connections of one client: at least 2, 8 by default. For the other strategies: how many claims may hold or
        /// wait in the database at once, at least 1, 32 by default.
        max_connections(number) "max-connections";
    }
}

fn host(opts: &Opts) -> String {
    host_and_port(&(opts.ip_or_hostname().to_owned(), opts.tcp_port()))
}
