//! The options that take one of several words.

/// Which replica gets a request. With both, a replica that did not answer is left out for a while.
///
/// ```
/// use fencelock_http::{Options, Spread};
///
/// // One address that leads to several replicas.
/// let options = Options::new(["locks.internal"]).spread(Spread::Request);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spread {
    /// All requests of a claim go to one replica, and claims are spread over the replicas.
    Claim,
    /// Each request goes to a replica chosen at random, as with a load balancer.
    Request,
}

pub(crate) const SPREADS: [(&str, Spread); 2] =
    [("claim", Spread::Claim), ("request", Spread::Request)];

/// How replicas show that they serve the same store. A lock that is taken in two stores protects nothing.
///
/// ```
/// use fencelock_http::{Identity, Options};
///
/// // Each replica reaches the same database by an address of its own.
/// let replicas = ["locks-1.internal", "locks-2.internal"];
/// let options = Options::new(replicas).same_store(Identity::Confirmed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Identity {
    /// They were started with the same store URL, apart from passwords and options, and with the same prefix. In PostgreSQL
    /// they find the tables in the same schema.
    Url,
    /// They reach the store by different URLs, and their operator confirms that it is the same store. It must still be of the
    /// same kind.
    Confirmed,
}

pub(crate) const IDENTITIES: [(&str, Identity); 2] =
    [("url", Identity::Url), ("confirmed", Identity::Confirmed)];
