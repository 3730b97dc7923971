//! A store whose claims belong to a key that this process can pass on.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock::engine::{Engine, Promises};
use fencelock::layers::Layer;
use fencelock::{Error, Store};
use fencelock_wire::ClaimKey;

/// An engine whose claims have ids of a given key.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) ids: [u8; 10],
}

#[async_trait]
impl Layer for Keyed {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    fn claim_ids(&self) -> Option<[u8; 10]> {
        Some(self.ids)
    }
}

impl fmt::Display for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.engine.fmt(f)
    }
}

/// The store of a URL. If it must prove that a claim is its own, it uses this key; if claims belong to a part of it, that of the
/// claim is its home.
pub(crate) fn with_key(url: &str, key: &ClaimKey, home: Option<&str>) -> Store {
    #[cfg(feature = "http")]
    if let Ok(parsed) = fencelock::StoreUrl::parse(url)
        && parsed.scheme.starts_with("fencelock+http")
    {
        let options = fencelock::http::Options::from(parsed).claim_key(key.secret());
        return match home {
            Some(home) => options.claim_home(home).into(),
            None => options.into(),
        };
    }
    #[cfg(not(feature = "http"))]
    let _ = (key, home);
    url.into()
}

/// Refuses a store whose holds end with their process.
pub(crate) fn detachable(promises: &Promises, store: String) -> Result<(), Error> {
    // The service has the hold. If it belongs to a replica, the grant names that replica.
    if promises.engine == "http" || (promises.portable && promises.engine != "memory") {
        return Ok(());
    }
    if promises.engine == "migrate" {
        let why = "a claim of a set that moves belongs to its process. Renew and release a grant from before the move at the store \
            that it is from: by the URL of that store (of that shard) with `outside-set=yes`, as long as the set takes locks there \
            (docs/operations.md)";
        return Err(Error::unsupported(store, "a hold without its process", why));
    }
    let why = "a hold there ends with the process that took it (its memory, session or connection); use `fencelock run` or \
        `fencelock hold`, which live as long as the hold, or a store with leases (docs/command.md)";
    Err(Error::unsupported(store, "a hold without its process", why))
}
