//! The typed options of several independent servers.

use fencelock_core::{StoreUrl, server_setters, setters};

use crate::client::{encrypt, url_of};

/// Where the nodes are, and how to use them: the options of a URL, with types.
///
/// ```no_run
/// use std::time::Duration;
/// use fencelock_redis::redlock::{Options, Redlock};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["a.internal", "b.internal", "c.internal"])
///     .password_env("REDIS_PASSWORD")
///     .max_ttl(Duration::from_secs(60));
/// let engine = Redlock::connect(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// Opening the store refuses options that cannot be used. For clients of the driver see the [options of one
/// server](crate::Options#clients-of-the-driver).
#[derive(Clone)]
pub struct Options {
    pub(super) url: StoreUrl,
    pub(super) own: Vec<redis::Client>,
}

impl Options {
    /// At least three nodes, each `HOST` or `HOST:PORT`; by default port 6379. In a URL: `redlock://HOST:PORT,HOST:PORT,…`.
    pub fn new(nodes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("redlock", nodes, "").into()
    }

    /// The servers of a program's own clients, each with its credentials and its TLS.
    ///
    /// ```no_run
    /// # use fencelock_redis::redlock::Options;
    /// # fn example() -> redis::RedisResult<()> {
    /// let hosts = ["redis://a.internal", "redis://b.internal", "redis://c.internal"];
    /// let own = hosts.map(redis::Client::open).into_iter().collect::<Result<_, _>>()?;
    /// let options = Options::from_clients(own);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn from_clients(nodes: Vec<redis::Client>) -> Self {
        let url = url_of(&nodes, "redlock");
        Self { url, own: nodes }
    }

    /// The number of the database of each node; 0 by default. In a URL: the path.
    #[must_use]
    pub fn database(mut self, number: u32) -> Self {
        match self.own.is_empty() {
            true => self.url.set_path(number.to_string()),
            // Refused when the store is opened.
            false => self.url.set("database", ""),
        }
        self
    }

    /// Encrypts all connections, and checks the nodes' certificates (feature `tls`). By default off. In a URL:
    /// `redlocks://`.
    #[must_use]
    pub fn tls(mut self) -> Self {
        match self.own.is_empty() {
            true => encrypt(&mut self.url),
            // Refused when the store is opened.
            false => self.url.set("tls", ""),
        }
        self
    }

    /// Whether the first node is asked alone, before the others, after a split vote. By default not. In a URL:
    /// `first-node-gate`.
    ///
    /// ```
    /// # use fencelock_redis::redlock::Options;
    /// let options = Options::new(["a", "b", "c"]).first_node_gate(true);
    /// ```
    #[must_use]
    pub fn first_node_gate(mut self, gate: bool) -> Self {
        self.url
            .set("first-node-gate", if gate { "yes" } else { "no" });
        self
    }

    server_setters!();

    setters! {
        /// How many nodes must agree: at least the majority, which is the default.
        quorum(number) "quorum";
        /// How long one node may take to answer: at least 1 ms, 50 ms by default. Every ttl must be at least five times as
        /// long.
        node_timeout(duration) "node-timeout";
        /// The longest ttl + lock-delay; 30 s by default. A restarted node does not vote for that time and 2 s.
        max_ttl(duration) "max-ttl";
    }
}
