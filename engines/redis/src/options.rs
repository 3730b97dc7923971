//! The typed options of one server, a master with Sentinels, or a Cluster.

use std::path::Path;

use fencelock_core::{StoreUrl, server_setters, setters};

use crate::client::{encrypt, socket_url, url_of};

/// Where Redis or Valkey is, and how to use it: the options of a URL, with types.
///
/// ```no_run
/// use std::time::Duration;
/// use fencelock_redis::{Options, Redis};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new("cache.internal")
///     .password_file("/etc/fencelock/password")
///     .restart_delay(Duration::from_secs(30));
/// let client = fencelock_core::Client::new(std::sync::Arc::new(Redis::connect(options).await?))?;
/// # Ok(())
/// # }
/// ```
///
/// A host is `HOST` or `HOST:PORT`. Opening the store refuses options that cannot be used.
///
/// # Clients of the driver
/// A `redis::Client` may set address, credentials and TLS, and fencelock opens connections with it. A pool or an open
/// connection cannot be used. The driver replaces a broken connection silently, but fencelock must notice that it broke.
///
/// ```no_run
/// use fencelock_redis::Options;
/// use redis::Client;
///
/// # fn example() -> redis::RedisResult<()> {
/// let one_server = Options::from_client(Client::open("redis://cache.internal")?);
/// let sentinels = vec![Client::open("redis://s1.internal:26379")?];
/// let like = Client::open("redis://fencelock@any")?;
/// let sentinel = Options::sentinel_from_clients(sentinels, "main", like);
/// let cluster = Options::cluster_from_clients(vec![Client::open("redis://n1.internal:7000")?]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    /// A program's own clients: of one server; of some nodes of a Cluster; or of a master and then of its Sentinels.
    pub(crate) own: Vec<redis::Client>,
}

impl Options {
    /// One server; by default port 6379. In a URL: `redis://HOST:PORT`.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::new("cache.internal:6379");
    /// ```
    pub fn new(host: impl Into<String>) -> Self {
        StoreUrl::new("redis", [host], "").into()
    }

    /// One server, over a Unix socket. In a URL: `redis+unix:///PATH`.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::unix("/run/redis/redis.sock");
    /// ```
    pub fn unix(path: impl AsRef<Path>) -> Self {
        socket_url(&path.as_ref().to_string_lossy()).into()
    }

    /// The master that these Sentinels call by this name, through its fail-overs; by default port 26379. In a URL:
    /// `redis+sentinel://HOST:PORT,HOST:PORT/MASTER`.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl Into<String>>,
        master: impl Into<String>,
    ) -> Self {
        StoreUrl::new("redis+sentinel", sentinels, master).into()
    }

    /// A Cluster, of which these are some nodes; by default port 6379. In a URL: `redis+cluster://HOST:PORT,HOST:PORT`.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::cluster(["n1.internal:7000", "n2.internal:7000"]);
    /// ```
    pub fn cluster(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("redis+cluster", nodes, "").into()
    }

    /// The server of a client of the driver.
    #[must_use]
    pub fn from_client(client: redis::Client) -> Self {
        let own = vec![client];
        let url = url_of(&own, "redis");
        Self { url, own }
    }

    /// Like [`sentinel`](Self::sentinel), with clients of the driver for the Sentinels. `like` has the credentials and the TLS
    /// settings for the master and its replicas; its address is not used.
    #[must_use]
    pub fn sentinel_from_clients(
        sentinels: Vec<redis::Client>,
        master: impl Into<String>,
        like: redis::Client,
    ) -> Self {
        let mut url = url_of(&sentinels, "redis+sentinel");
        url.path = master.into();
        let own = [vec![like], sentinels].concat();
        Self { url, own }
    }

    /// Like [`cluster`](Self::cluster), with clients of the driver for some nodes. The other nodes get the credentials and the
    /// TLS settings of the first one.
    #[must_use]
    pub fn cluster_from_clients(nodes: Vec<redis::Client>) -> Self {
        let url = url_of(&nodes, "redis+cluster");
        Self { url, own: nodes }
    }

    /// The number of the database of one server; 0 by default. In a URL: the path.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::new("cache.internal").database(3);
    /// ```
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        match self.url.scheme.as_str() {
            "redis" | "rediss" | "valkey" if self.own.is_empty() => {
                self.url.set_path(number.to_string());
            }
            // Refused when the store is opened.
            _ => self.url.set("database", number.to_string()),
        }
        self
    }

    /// Encrypts all connections, and checks the servers' certificates (feature `tls`). By default off. In a URL:
    /// `rediss://`.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::new("cache.internal").tls();
    /// ```
    #[must_use]
    pub fn tls(mut self) -> Self {
        match self.own.is_empty() && self.url.scheme != "redis+unix" {
            true => encrypt(&mut self.url),
            // Refused when the store is opened.
            false => self.url.set("tls", ""),
        }
        self
    }

    /// The password of the user for the Sentinels. By default none.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// # let password = String::new();
    /// let options = Options::sentinel(["s1", "s2", "s3"], "main").sentinel_password(password);
    /// ```
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.url.set_secret("sentinel-password", password);
        self
    }

    /// Sentinel and Cluster: pairs of an address (`HOST:PORT`) that the servers report and the address to use instead. By
    /// default none. In a URL: `address-map`.
    ///
    /// ```
    /// # use fencelock_redis::Options;
    /// let options = Options::cluster(["n1:7000"]).address_map([("10.0.0.1:7000", "n1:7000")]);
    /// ```
    #[must_use]
    pub fn address_map<T: Into<String>>(mut self, pairs: impl IntoIterator<Item = (T, T)>) -> Self {
        let pairs = pairs.into_iter();
        let pairs = pairs.map(|(told, real)| format!("{}={}", told.into(), real.into()));
        let map = pairs.collect::<Vec<_>>().join(",");
        self.url.set("address-map", map);
        self
    }

    server_setters!();

    setters! {
        /// How long one answer may take; 500 ms by default.
        response_timeout(duration) "response-timeout";
        /// How long a lock that was handed over waits for a sign of life of its new holder: at least 50 ms, 2 s by default.
        claim_window(duration) "claim-window";
        /// For how long nothing is granted after a restart of the server. Set it to the longest ttl + lock-delay in use. By
        /// default 0.
        restart_delay(duration) "restart-delay";
        /// How many replicas must have a grant or a renewal before it counts; 0 by default.
        replicas(number) "replicas";
        /// Sentinel only: for how long a new master grants nothing; no ttl + lock-delay may be longer. By default 0.
        promotion_delay(duration) "promotion-delay";
        /// The user for the Sentinels. By default none.
        sentinel_user(text) "sentinel-user";
        /// The environment variable that has the Sentinels' password. By default none.
        sentinel_password_env(text) "sentinel-password-env";
        /// The file that has the Sentinels' password. By default none.
        sentinel_password_file(path) "sentinel-password-file";
    }
}
