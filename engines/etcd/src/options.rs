//! The typed options.

use etcd_client::ConnectOptions;
use fencelock_core::{StoreUrl, server_setters, setters};

use crate::layout::{LAYOUTS, Layout};

/// Where the cluster is, and how to use it: the options of a URL, with types.
///
/// ```no_run
/// use std::time::Duration;
/// use fencelock_etcd::{Etcd, Options};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["e1.internal", "e2.internal", "e3.internal"])
///     .tls()
///     .tls_ca("/etc/fencelock/ca.pem")
///     .claim_window(Duration::from_secs(3));
/// let engine = Etcd::connect(options).await?;
/// # Ok(())
/// # }
/// ```
///
/// Opening the store refuses options that cannot be used.
///
/// # Options of the driver
/// `etcd_client::ConnectOptions` may set credentials, TLS and everything else, and fencelock opens connections with them. An
/// open client cannot be used. It reconnects silently, perhaps to a member that lags, but fencelock must notice that.
///
/// ```no_run
/// use etcd_client::ConnectOptions;
/// use fencelock_etcd::Options;
///
/// # let password = String::new();
/// let own = ConnectOptions::new().with_user("locks", password);
/// let options = Options::from_endpoints(["http://e1.internal:2379"], own);
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    pub(crate) own: Option<ConnectOptions>,
}

impl Options {
    /// The members of one cluster, each `HOST` or `HOST:PORT`; by default port 2379. In a URL:
    /// `etcd://HOST:PORT,HOST:PORT`.
    ///
    /// ```
    /// # use fencelock_etcd::Options;
    /// let options = Options::new(["e1.internal", "e2.internal", "e3.internal:2379"]);
    /// ```
    pub fn new(members: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("etcd", members, "").into()
    }

    /// The members of one cluster as endpoints, all `http://HOST:PORT` or all `https://HOST:PORT`, with options of the driver.
    /// Of these, `connect_timeout`, `keep_alive`, `require_leader` and `auto_token_refresh` are overwritten.
    pub fn from_endpoints(
        endpoints: impl IntoIterator<Item = impl AsRef<str>>,
        options: ConnectOptions,
    ) -> Self {
        let mut scheme = "etcd";
        let hosts = endpoints.into_iter().map(|endpoint| {
            let endpoint = endpoint.as_ref();
            if endpoint.starts_with("https://") {
                scheme = "etcds";
            }
            let host = endpoint
                .split_once("://")
                .map_or(endpoint, |(_, host)| host);
            host.to_owned()
        });
        let hosts: Vec<String> = hosts.collect();
        let own = Some(options);
        Self {
            url: StoreUrl::new(scheme, hosts, ""),
            own,
        }
    }

    /// Encrypts all connections, and checks the members' certificates (feature `tls`). By default off. In a URL: `etcds://`.
    ///
    /// ```
    /// # use fencelock_etcd::Options;
    /// let options = Options::new(["e1.internal"]).tls();
    /// ```
    #[must_use]
    pub fn tls(mut self) -> Self {
        match self.own {
            None => self.url.set_scheme("etcds"),
            // Refused when the store is opened.
            Some(_) => self.url.set("tls", ""),
        }
        self
    }

    server_setters!();

    setters! {
        /// How the keys are named; by default [`Layout::Fencelock`].
        layout(choice Layout in LAYOUTS) "layout";
        /// How long one answer may take; 2 s by default.
        response_timeout(duration) "response-timeout";
        /// The lease of waiting claims, and for how long a dead waiter keeps its place: at least 1 s, 5 s by default.
        claim_window(duration) "claim-window";
    }
}
