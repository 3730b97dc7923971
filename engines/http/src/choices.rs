//! The options that take one of several words.

/// Which replica gets a request. With both, a replica that did not answer is left out for a while.
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
