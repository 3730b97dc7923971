//! The settings of a replica.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock_core::{Error, Result, StoreUrl};
use http::Uri;
use http::uri::{Authority, PathAndQuery};

use crate::access::Access;
use crate::principal::{Grant, Principal, Right};

/// How a replica serves. [`Config::default`] is for one machine: it listens on loopback and asks for no credentials.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The URL under which clients reach this replica.
    pub advertise: Option<String>,
    /// More names of this service, such as that of a load balancer. A request's `Host` must be one of these, loopback, an
    /// address on which the replica listens, or the host of [`advertise`](Self::advertise).
    pub hosts: Vec<String>,
    /// Who may use the service, and for what.
    pub principals: Vec<Principal>,
    /// What clients without credentials may do. By default: take and look, but not evict.
    pub anonymous: Vec<Grant>,
    /// Where evictions, refusals and reloads are written. Nowhere by default.
    pub audit: Option<AuditLog>,
    /// The files of TLS. Without them the service speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Where `/metrics`, `/healthz` and `/readyz` are served. By default they are served with everything else.
    pub admin: Option<SocketAddr>,
    /// The proxies whose `X-Forwarded-For` the audit log believes.
    pub proxies: Vec<IpAddr>,
    /// The lock names that may be labels of metrics: names, and prefixes that end in `*`. All others are `other`.
    pub metrics: Vec<String>,
    /// The limits of a replica.
    pub limits: Limits,
}

/// The files of TLS, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate of the service, and the intermediate ones.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of the clients' certificates, if clients may have certificates.
    pub client_ca: Option<PathBuf>,
    /// Whether a client must have a certificate.
    pub client_required: bool,
}

impl Config {
    /// For a service that only trusted clients can reach: every client may do everything.
    #[must_use]
    pub fn trusting() -> Self {
        Self {
            anonymous: vec![Grant::on_all(Right::ALL)],
            ..Self::default()
        }
    }

    /// Checks whether a service can be started with these settings. Nothing is opened.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address or a principal that cannot be used.
    pub fn check(&self) -> Result<()> {
        if let Some(advertise) = &self.advertise {
            check_address(advertise)
                .map_err(|why| Error::invalid("advertise", StoreUrl::redacted(advertise), why))?;
        }
        if self.limits.connections == 0 {
            let why = "nobody could connect; give 1 or more";
            return Err(Error::invalid("connections", "0", why));
        }
        Access::new(&self.principals, &self.anonymous, None).map(drop)
    }
}

/// Checks the URL that clients are told to connect to. It must have no credentials, path or query.
fn check_address(address: &str) -> std::result::Result<(), &'static str> {
    let uri: Uri = address.parse().map_err(|_| "it is no URL")?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err("it must begin with http:// or https://");
    }
    let authority = uri.authority().map_or("", Authority::as_str);
    if authority.contains('@') {
        return Err("it must have no user and no password: every client reads it");
    }
    match uri.path_and_query().map_or("/", PathAndQuery::as_str) {
        "/" => Ok(()),
        _ => Err("it must have no path and no query"),
    }
}

/// Where the audit log is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AuditLog {
    /// A file to which lines are appended; `stdout` is standard output.
    pub file: PathBuf,
    /// Whether each grant and release is written, too.
    pub grants: bool,
}

impl AuditLog {
    /// A log without grants and releases.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self {
            file: file.into(),
            grants: false,
        }
    }

    /// The file, unless it is standard output.
    pub(crate) fn path(&self) -> Option<&Path> {
        Some(self.file.as_path()).filter(|file| *file != Path::new("stdout"))
    }
}

/// The limits of a replica.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The longest body of a request, in bytes.
    pub body: usize,
    /// The longest body of `POST /v1/renewals` and `POST /v1/batch`, in bytes.
    pub renewals_body: usize,
    /// The longest path and query, in bytes.
    pub url: usize,
    /// The most bytes of all headers together.
    pub header_bytes: usize,
    /// The most headers.
    pub headers: usize,
    /// How long a handshake of TLS may take.
    pub handshake_timeout: Duration,
    /// How long the headers of a request may take to arrive. For a connection's first request it counts from when the
    /// connection was accepted, for a later one of HTTP/1 from the first byte.
    pub header_timeout: Duration,
    /// How long a connection may be idle before the headers of its next request have arrived.
    pub idle_timeout: Duration,
    /// How long the peer may leave an answer unread.
    pub unread_timeout: Duration,
    /// The longest silence on a stream of events. After it the stream sends a comment.
    pub stream_beat: Duration,
    /// How long a stream of events lasts at most. Its client opens another one.
    pub stream_longest: Duration,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// How often the files of TLS are read again.
    pub tls_reload: Duration,
    /// The most open connections. A tenth of them is reserved for peers that have renewed within the last minute.
    pub connections: usize,
    /// The most requests that wait at a time. A claim that is in the queue already may wait beyond this limit.
    pub polls: usize,
    /// The longest lease that a client may ask for, lock-delay included. If the store's own limit is shorter, that limit
    /// applies.
    pub max_ttl: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            advertise: None,
            hosts: Vec::new(),
            principals: Vec::new(),
            anonymous: vec![Grant::on_all(&[Right::Take, Right::Look])],
            audit: None,
            tls: None,
            admin: None,
            proxies: Vec::new(),
            metrics: Vec::new(),
            limits: Limits::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 16 << 10,
            renewals_body: 1 << 20,
            url: 4 << 10,
            header_bytes: 16 << 10,
            headers: 64,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(60),
            unread_timeout: Duration::from_secs(30),
            stream_beat: Duration::from_secs(10),
            stream_longest: Duration::from_secs(600),
            body_timeout: Duration::from_secs(10),
            tls_reload: Duration::from_secs(3600),
            connections: 25_000,
            polls: 20_000,
            max_ttl: Duration::MAX,
        }
    }
}
