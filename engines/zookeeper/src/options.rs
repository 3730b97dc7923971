//! The typed options.

use fencelock_core::{StoreUrl, server_setters, setters};
use zookeeper_client::Connector;

/// Where the servers are, and how to use them: the options of a URL, with types.
///
/// ```no_run
/// use std::time::Duration;
/// use fencelock_zookeeper::{Options, ZooKeeper};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["z1.internal", "z2.internal", "z3.internal"])
///     .chroot("/locks")
///     .user("fencelock")
///     .password_file("/etc/fencelock/password")
///     .claim_window(Duration::from_secs(4));
/// let engine = ZooKeeper::open(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// The user is one of the scheme `digest`. A file given to `tls_ca`, `tls_cert` or `tls_key` turns on TLS to all servers
/// (feature `tls`). Opening the store refuses options that cannot be used.
///
/// # Connectors of the driver
/// A `zookeeper_client::Connector` may set credentials and TLS, and fencelock opens sessions with it. fencelock cannot use an
/// open client, because its session has another timeout than locks need. Also, when a session of fencelock ends, all other
/// ephemeral nodes of the program would end with it.
///
/// ```no_run
/// use fencelock_zookeeper::Options;
///
/// let own = zookeeper_client::Client::connector().with_auth("digest", b"ann:secret");
/// let options = Options::from_connector(["z1.internal"], own).private_nodes();
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    pub(crate) own: Option<Own>,
}

/// The driver's connector.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) connector: Connector,
    /// Whether it uses TLS.
    pub(crate) secure: bool,
    /// Whether new nodes are only for the connector's own user.
    pub(crate) private: bool,
}

impl Options {
    /// One server or an ensemble, each `HOST` or `HOST:PORT`; by default port 2181. In a URL:
    /// `zookeeper://HOST:PORT,HOST:PORT`.
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("zookeeper", servers, "").into()
    }

    /// Like [`new`](Self::new), with a connector of the driver without TLS. It must not name a session; its timeouts are
    /// overwritten.
    pub fn from_connector(
        servers: impl IntoIterator<Item = impl Into<String>>,
        connector: Connector,
    ) -> Self {
        let mut options = Self::new(servers);
        options.own = Some(Own {
            connector,
            secure: false,
            private: false,
        });
        options
    }

    /// Like [`from_connector`](Self::from_connector), with TLS.
    ///
    /// ```no_run
    /// # use fencelock_zookeeper::Options;
    /// let own = zookeeper_client::Client::connector().with_tls(Default::default());
    /// let options = Options::from_secure_connector(["z1.internal"], own);
    /// ```
    #[cfg(feature = "tls")]
    pub fn from_secure_connector(
        servers: impl IntoIterator<Item = impl Into<String>>,
        connector: Connector,
    ) -> Self {
        let mut options = Self::from_connector(servers, connector);
        if let Some(own) = &mut options.own {
            own.secure = true;
        }
        options
    }

    /// Creates nodes only for the connector's own user. By default nodes are for everybody.
    #[must_use]
    pub fn private_nodes(mut self) -> Self {
        match &mut self.own {
            Some(own) => own.private = true,
            // Refused when the store is opened.
            None => self.url.set("private-nodes", ""),
        }
        self
    }

    /// The node below which all locks are; by default the root. In a URL: the path.
    #[must_use]
    pub fn chroot(mut self, path: impl Into<String>) -> Self {
        self.url.set_path(path.into().trim_start_matches('/'));
        self
    }

    server_setters!();

    setters! {
        /// How long one answer may take; 1500 ms by default.
        response_timeout(duration) "response-timeout";
        /// The session timeout of waiting claims: a dead waiter delays the queue by it. 6 s by default.
        claim_window(duration) "claim-window";
    }
}
