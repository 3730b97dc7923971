//! Which replica has a claim, on a store whose claims belong to a replica.
//!
//! A claim belongs to the replica that got its first request, and every later request names that replica by its id. A replica
//! that was restarted has another id, and so has another replica behind the same balancer. Both refuse the request.

use std::fmt;
use std::sync::Arc;

use fencelock_core::support::Mutex;
use fencelock_core::{ConfigPart, Error, Result};
use fencelock_wire::Store;
use http::uri::Authority;
use http::{HeaderValue, Uri};

use crate::config::{Config, is_local};

/// A replica that keeps claims.
#[derive(Debug)]
pub(crate) struct Home {
    /// Its index in the list of the URL.
    pub(crate) index: usize,
    /// Its own `host:port`, which may differ from the one in the URL.
    pub(crate) address: String,
    /// Its id, drawn at its start.
    pub(crate) id: HeaderValue,
}

impl Home {
    /// Makes a home from the information that the replica at this index gives.
    pub(crate) fn new(config: &Config, index: usize, said: &Store) -> Result<Self> {
        let listed = &config.replicas[index];
        let refuse = |why: String| {
            Error::config(
                &config.store,
                ConfigPart::Server,
                format!("{listed}: {why}"),
            )
        };
        let address = match &said.advertise {
            Some(url) => advertised(config, url).map_err(refuse)?,
            None => listed.clone(),
        };
        let id = HeaderValue::from_str(&said.replica);
        let id = id.map_err(|_| refuse("its id cannot be sent in a header".to_owned()))?;
        Ok(Self { index, address, id })
    }

    /// The home of other clients' claims, if the options name it.
    pub(crate) fn given(config: &Config) -> Result<Option<Self>> {
        let Some(text) = &config.home else {
            return Ok(None);
        };
        let needs_tls = config.bearer.is_some() && config.tls.is_none();
        let read = Self::read(text, &config.replicas, needs_tls);
        read.map(Some)
            .map_err(|why| Error::config(&config.store, ConfigPart::Url, why))
    }

    /// Reads `ID@HOST:PORT`, which another process got. `local` says that it must be on this machine.
    fn read(text: &str, replicas: &[String], local: bool) -> Result<Self, String> {
        let unusable = || format!("{text:?} is not the replica of a claim, as ID@HOST:PORT");
        let (id, address) = text.split_once('@').ok_or_else(unusable)?;
        let authority: Authority = address.parse().map_err(|_| unusable())?;
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id || authority.port().is_none() || address.contains('@') {
            return Err(unusable());
        }
        let host = authority.host();
        if local && !is_local(host.trim_start_matches('[').trim_end_matches(']')) {
            return Err(format!(
                "the claim belongs to the replica {address}: that is another machine, and a token is not sent there without TLS"
            ));
        }
        let listed = replicas.iter().position(|listed| listed == address);
        Ok(Self {
            // For one that is not listed: its failures count as those of the first one.
            index: listed.unwrap_or(0),
            address: address.to_owned(),
            id: HeaderValue::from_str(id).map_err(|_| unusable())?,
        })
    }
}

/// As [`Home::read`] reads it.
impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.to_str().unwrap_or_default();
        write!(f, "{id}@{}", self.address)
    }
}

/// The host and port of the URL that a replica advertises.
fn advertised(config: &Config, url: &str) -> Result<String, String> {
    let unusable = |why: &str| {
        format!(
            "its claims belong to it, so it must be reached by itself, and it advertises {url}: {why}"
        )
    };
    let uri: Uri = url.parse().map_err(|_| unusable("that is not a URL"))?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(unusable("that is not a URL with a host"));
    };
    let (wanted, port) = match config.tls {
        Some(_) => ("https", 443),
        None => ("http", 80),
    };
    if scheme != wanted {
        return Err(unusable(&format!("this store's URL says {wanted}")));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(unusable("it has a path"));
    }
    let host = authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if config.tls.is_none() && config.bearer.is_some() && !is_local(bare) {
        return Err(unusable(
            "that is another machine, and a token is not sent there without TLS",
        ));
    }
    Ok(format!("{host}:{}", authority.port_u16().unwrap_or(port)))
}

/// The replicas as they were last seen, in the order of the URL.
#[derive(Debug)]
pub(crate) struct Homes(Mutex<Vec<Option<Arc<Home>>>>);

impl Homes {
    pub(crate) fn new(found: Vec<Option<Arc<Home>>>) -> Self {
        Self(Mutex::new(found))
    }

    /// The replica at this index, as it was last seen.
    pub(crate) fn at(&self, index: usize) -> Option<Arc<Home>> {
        self.0.lock().get(index).cloned().flatten()
    }

    pub(crate) fn found(&self, home: &Arc<Home>) {
        if let Some(known) = self.0.lock().get_mut(home.index) {
            *known = Some(Arc::clone(home));
        }
    }

    /// Forgets a replica that has gone or does not answer. The next claim asks for its id again.
    pub(crate) fn forget(&self, home: &Arc<Home>) {
        if let Some(known) = self.0.lock().get_mut(home.index)
            && known.as_ref().is_some_and(|known| Arc::ptr_eq(known, home))
        {
            *known = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::StoreUrl;
    use fencelock_wire::Binding;

    use super::*;

    fn said(advertise: Option<&str>) -> Store {
        Store {
            engine: "etcd".to_owned(),
            store: "etcd://h".to_owned(),
            binding: Binding::Replica,
            claim_window_ms: 5000,
            poll_ms: 2500,
            order: "fifo".to_owned(),
            shared: true,
            permits: true,
            lock_delay: true,
            lease: "session".to_owned(),
            wake: "push".to_owned(),
            durability: "durable".to_owned(),
            clock: String::new(),
            min_ttl_ms: 1000,
            max_ttl_ms: 100_000,
            limits: Vec::new(),
            version: String::new(),
            features: Vec::new(),
            replica: "0123456789abcdef".to_owned(),
            advertise: advertise.map(str::to_owned),
        }
    }

    fn home(options: crate::Options, advertise: Option<&str>) -> Result<Home> {
        Home::new(&Config::new(options)?, 0, &said(advertise))
    }

    fn plain(advertise: Option<&str>) -> Result<Home> {
        let url = StoreUrl::parse("fencelock+http://h:1").unwrap();
        home(url.into(), advertise)
    }

    #[test]
    fn the_advertised_address_of_a_replica_is_used() {
        for (advertise, address) in [
            (None, "h:1"),
            (Some("http://gw-1:7420"), "gw-1:7420"),
            (Some("http://gw-1/"), "gw-1:80"),
            (Some("http://[::1]:7"), "[::1]:7"),
        ] {
            let home = plain(advertise).unwrap();
            assert_eq!((home.address.as_str(), home.index), (address, 0));
        }
    }

    #[test]
    fn a_home_is_read_as_it_is_written() {
        let listed = ["a:1".to_owned(), "b:2".to_owned()];
        for (text, index) in [("0a1b@b:2", 1), ("0a1b@[::1]:7", 0)] {
            let home = Home::read(text, &listed, false).unwrap();
            assert_eq!((home.to_string().as_str(), home.index), (text, index));
        }
        for bad in [
            "", "b:2", "@b:2", "0a@", "0a@b", "0 a@b:2", "0a@u@b:2", "0a@b:2/x",
        ] {
            assert!(Home::read(bad, &listed, false).is_err(), "{bad}");
        }
        // A token would go there in the clear.
        assert!(Home::read("0a@gw-1:1", &listed, true).is_err());
        assert!(Home::read("0a@127.0.0.1:1", &listed, true).is_ok());
    }

    #[test]
    fn an_unusable_address_is_an_error() {
        for (advertise, word) in [
            ("gw-1", "host"),
            ("http://gw-1/x", "path"),
            ("https://gw-1", "says http"),
            ("no URL at all", "URL"),
        ] {
            let text = plain(Some(advertise)).unwrap_err().to_string();
            assert!(text.contains(word) && text.contains("h:1"), "{text}");
        }
        let with_token = || crate::Options::new(["localhost"]).token("flk_secret");
        let text = home(with_token(), Some("http://gw-1"))
            .unwrap_err()
            .to_string();
        assert!(text.contains("TLS") && !text.contains("secret"), "{text}");
        home(with_token(), Some("http://127.0.0.2:1")).unwrap();
    }
}
