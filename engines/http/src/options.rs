//! The typed options.

use fencelock_core::{StoreUrl, common_setters, setters};

use crate::choices::{IDENTITIES, Identity, SPREADS, Spread};

/// Where the lock service is, and how to use it: the options of a URL, with types.
///
/// ```no_run
/// use std::time::Duration;
/// use fencelock_http::{Http, Options};
///
/// # async fn example() -> fencelock_core::Result<()> {
/// let options = Options::new(["locks-1.internal", "locks-2.internal"])
///     .tls()
///     .token_file("/etc/fencelock/token")
///     .response_timeout(Duration::from_secs(1));
/// let client = fencelock_core::Client::new(std::sync::Arc::new(Http::connect(options).await?))?;
/// # Ok(())
/// # }
/// ```
///
/// Opening the store refuses options that cannot be used.
#[derive(Clone)]
pub struct Options {
    pub(crate) url: StoreUrl,
    pub(crate) own: Others,
}

/// The claims of other clients that this client continues.
#[derive(Clone, Default)]
pub(crate) struct Others {
    pub(crate) keys: Vec<String>,
    /// The replica to which they belong.
    pub(crate) home: Option<String>,
}

impl Options {
    /// The replicas of one service, or its load balancer, each `HOST` or `HOST:PORT`; by default port 7420. In a URL:
    /// `fencelock+http://HOST:PORT,HOST:PORT`.
    pub fn new(replicas: impl IntoIterator<Item = impl Into<String>>) -> Self {
        StoreUrl::new("fencelock+http", replicas, "").into()
    }

    /// Encrypts all connections, and checks the service's certificates (feature `tls`). By default off. In a URL:
    /// `fencelock+https://`.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.url.set_scheme("fencelock+https");
        self
    }

    /// The bearer token, which says who this client is. By default none. In a URL: `token-env` or `token-file`.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.url.set_secret("token", token);
        self
    }

    /// The claim key of another client, whose claims this client continues. This client draws the key of its own claims itself.
    /// May be called for several keys. It has no form in a URL.
    ///
    /// ```
    /// # use fencelock_http::Options;
    /// # let key = String::new();
    /// let options = Options::new(["locks.internal"]).claim_key(key);
    /// ```
    #[must_use]
    pub fn claim_key(mut self, key: impl Into<String>) -> Self {
        self.own.keys.push(key.into());
        self
    }

    /// The replica to which the claims of those other clients belong, on a store whose claims belong to a replica: the text of
    /// [`Engine::home_of`](fencelock_core::Engine::home_of). It has no form in a URL.
    ///
    /// ```
    /// # use fencelock_http::Options;
    /// # let (key, home) = (String::new(), String::new());
    /// let options = Options::new(["locks.internal"]).claim_key(key).claim_home(home);
    /// ```
    #[must_use]
    pub fn claim_home(mut self, home: impl Into<String>) -> Self {
        self.own.home = Some(home.into());
        self
    }

    setters! {
        /// The environment variable that has the bearer token, instead of [`token`](Self::token).
        token_env(text) "token-env";
        /// The file that has the bearer token; one newline at its end is ignored.
        token_file(path) "token-file";
        /// A file in PEM format with the authority to trust; by default those that this machine trusts.
        tls_ca(path) "tls-ca";
        /// A file in PEM format with this client's certificate; goes with [`tls_key`](Self::tls_key). By default none.
        tls_cert(path) "tls-cert";
        /// A file in PEM format with the key of this client's certificate. By default none.
        tls_key(path) "tls-key";
        /// How long a connection to a replica may take; 1 s by default.
        connect_timeout(duration) "connect-timeout";
        /// How long one answer may take, beside the time that the request waits for the lock; 2 s by default.
        response_timeout(duration) "response-timeout";
        /// Which replica gets a request; by default [`Spread::Claim`].
        spread(choice Spread in SPREADS) "spread";
        /// How replicas show that they serve the same store; by default [`Identity::Url`].
        same_store(choice Identity in IDENTITIES) "same-store";
    }

    common_setters!();
}
