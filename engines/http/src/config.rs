//! The options of a store, checked.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use fencelock_core::engine::{Address, host_and_port};
use fencelock_core::{Error, Result, StoreUrl};
use fencelock_wire::ClaimKey;
use http::HeaderValue;

use crate::choices::{IDENTITIES, Identity, SPREADS, Spread};
use crate::options::Options;
use crate::tls::Tls;

const DEFAULT_PORT: u16 = 7420;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A claim key and the header that carries it.
#[derive(Clone)]
pub(crate) struct Key {
    pub(crate) key: ClaimKey,
    pub(crate) header: HeaderValue,
}

impl Key {
    fn new(key: ClaimKey) -> Option<Self> {
        let mut header = HeaderValue::from_str(key.secret()).ok()?;
        header.set_sensitive(true);
        Some(Self { key, header })
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

#[derive(Debug)]
pub(crate) struct Config {
    /// The URL without its secrets.
    pub(crate) store: String,
    /// `host:port` of each replica, as it stands in URLs.
    pub(crate) replicas: Vec<String>,
    pub(crate) tls: Option<Tls>,
    /// The value of the header `Authorization`.
    pub(crate) bearer: Option<HeaderValue>,
    /// The first key is this client's own. The others are those of other clients.
    pub(crate) keys: Vec<Key>,
    /// The replica to which the claims of those other clients belong, as ID@HOST:PORT.
    pub(crate) home: Option<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) spread: Spread,
    pub(crate) identity: Identity,
    /// A replica on another machine that is reached without TLS, if there is one.
    pub(crate) open_to_readers: Option<String>,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let store = url.to_string();
        let connect_timeout = url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?;
        let response_timeout = url.take_timeout("response-timeout", RESPONSE_TIMEOUT)?;
        let spread = url.take_choice("spread", &SPREADS)?;
        let identity = url.take_choice("same-store", &IDENTITIES)?;
        if !url.path.is_empty() {
            return Err(url.refuse("it has a path; use the option prefix to separate stores"));
        }
        let encrypted = url.scheme == "fencelock+https";
        let addresses = url.addresses(DEFAULT_PORT)?;
        let mut away = addresses
            .iter()
            .filter(|(host, _): &&Address| !is_local(host));
        let open_to_readers = (!encrypted).then(|| away.next().map(host_and_port));
        let open_to_readers = open_to_readers.flatten();
        let token = url.take_secret("token")?;
        if let Some(replica) = open_to_readers.as_ref().filter(|_| token.is_some()) {
            return Err(url.refuse(format!(
                "{replica} is another machine, and a token is not sent there without TLS; write fencelock+https://"
            )));
        }
        let bearer = token.map(|token| bearer(&url, &token)).transpose()?;
        let tls = Tls::take(&mut url, encrypted)?;
        if url.user.is_some() {
            return Err(
                url.refuse("it has a user; the service knows clients by token-file or tls-cert")
            );
        }
        let keys = keys(&url, &own.keys)?;
        let replicas: Vec<_> = addresses.iter().map(host_and_port).collect();
        url.finish()?;
        Ok(Self {
            store,
            replicas,
            tls,
            bearer,
            keys,
            home: own.home,
            connect_timeout,
            response_timeout,
            spread,
            identity,
            open_to_readers,
        })
    }

    /// The beginning of the ids of this client's claims, which commits to its key.
    pub(crate) fn claim_ids(&self) -> Option<[u8; 10]> {
        self.keys.first().map(|key| key.key.claim_ids())
    }
}

/// Draws a key for this client, and reads those of other clients.
fn keys(url: &StoreUrl, others: &[String]) -> Result<Vec<Key>> {
    let drawn = ClaimKey::draw().map_err(|error| {
        Error::internal(
            url,
            format!("the operating system gives no random numbers: {error}"),
        )
    })?;
    let others = others
        .iter()
        .map(|text| text.parse().map_err(|error| url.refuse(format!("{error}"))));
    let all = std::iter::once(Ok(drawn)).chain(others);
    all.map(|key: Result<ClaimKey>| {
        Key::new(key?).ok_or_else(|| Error::internal(url, "a claim key is no header"))
    })
    .collect()
}

fn bearer(url: &StoreUrl, token: &str) -> Result<HeaderValue> {
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let header = header.ok().filter(|_| !token.is_empty());
    let mut header = header.ok_or_else(|| {
        url.refuse("the token is empty, or has characters that a token cannot have; correct its file or variable")
    })?;
    header.set_sensitive(true);
    Ok(header)
}

/// Whether a host is this machine.
pub(crate) fn is_local(host: &str) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    host.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(text)?.into())
    }

    #[test]
    fn reads_urls() {
        let config =
            read("fencelock+http://a,b:1,[::1]:2?spread=request&response-timeout=3s").unwrap();
        assert_eq!(config.replicas, ["a:7420", "b:1", "[::1]:2"]);
        assert_eq!(config.spread, Spread::Request);
        assert_eq!(config.identity, Identity::Url);
        assert_eq!(config.response_timeout, Duration::from_secs(3));
        assert_eq!(config.open_to_readers.as_deref(), Some("a:7420"));
        let config = read("fencelock+http://localhost,127.0.0.1:1,[::1]").unwrap();
        assert_eq!(config.open_to_readers, None);
        assert!(config.tls.is_none() && config.bearer.is_none());
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, word) in [
            ("fencelock+http://", "host"),
            ("fencelock+http://h:port", "port"),
            ("fencelock+http://h,h", "twice"),
            ("fencelock+http://h/x", "path"),
            ("fencelock+http://u@h", "token-file"),
            ("fencelock+http://:p@h", "password"),
            ("fencelock+http://h?spread=x", "spread"),
            ("fencelock+http://h?same-store=x", "same-store"),
            ("fencelock+http://h?response-timeout=0", "response-timeout"),
            ("fencelock+http://h?no-such=1", "no-such"),
            ("fencelock+http://h?token-env=HOME", "TLS"),
            ("fencelock+http://localhost?tls-ca=/x", "fencelock+https"),
            #[cfg(not(feature = "tls"))]
            ("fencelock+https://h", "feature tls"),
            #[cfg(feature = "tls")]
            ("fencelock+https://h?tls-ca=/no/such/file", "/no/such/file"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["a", "[::1]:2"])
            .spread(Spread::Request)
            .same_store(Identity::Confirmed)
            .response_timeout(Duration::from_millis(1500));
        let text =
            "fencelock+http://a,[::1]:2?spread=request&same-store=confirmed&response-timeout=1.5s";
        let [by_setters, by_url] =
            [Config::new(options), read(text)].map(|config| format!("{:?}", config.unwrap()));
        assert_eq!(by_setters, by_url);
    }

    #[test]
    fn no_secret_is_shown() {
        let key = "K".repeat(43);
        let options = Options::new(["localhost"])
            .token("flk_secret")
            .claim_key(&key);
        let shown = format!("{options:?} {:?}", Config::new(options.clone()).unwrap());
        assert!(
            !shown.contains("secret") && !shown.contains("KKK"),
            "{shown}"
        );
        for (bad, word) in [
            (options.clone().claim_key("hunter2"), "43"),
            (Options::new(["localhost"]).token("hunter2\n"), "token"),
        ] {
            let error = Config::new(bad).unwrap_err().to_string();
            assert!(
                error.contains(word) && !error.contains("hunter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn each_client_draws_a_key() {
        let [one, two] = ["fencelock+http://h"; 2].map(|url| read(url).unwrap());
        assert_ne!(one.claim_ids(), two.claim_ids());
        assert!(one.claim_ids().is_some());
    }
}
