//! The options of a store, checked.

use std::time::Duration;

use etcd_client::ConnectOptions;
use fencelock_core::engine::host_and_port;
use fencelock_core::{Result, StoreUrl};

use crate::layout::{LAYOUTS, Layout};
use crate::options::Options;

const DEFAULT_PORT: u16 = 2379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
const CLAIM_WINDOW: Duration = Duration::from_secs(5);
/// Leases are whole seconds.
const SHORTEST_WINDOW: Duration = Duration::from_secs(1);
/// A server closes connections that send pings more often than every five seconds.
const PING: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct Config {
    /// `http://host:port` of each member.
    pub(crate) endpoints: Vec<String>,
    pub(crate) options: ConnectOptions,
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) tls: bool,
    /// Whether the client has a certificate.
    pub(crate) certificate: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) claim_window: Duration,
    pub(crate) layout: Layout,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let store = url.to_string();
        let connect_timeout = url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?;
        let response_timeout = url.take_timeout("response-timeout", RESPONSE_TIMEOUT)?;
        let claim_window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
        if claim_window < SHORTEST_WINDOW {
            return Err(url.refuse(format!(
                "claim-window is {claim_window:?}; it must be at least {SHORTEST_WINDOW:?}"
            )));
        }
        let layout = url.take_choice("layout", &LAYOUTS)?;
        if !url.path.is_empty() {
            return Err(url.refuse("it has a path; use the option prefix to separate stores"));
        }
        let tls = url.scheme == "etcds";
        let (options, certificate) = match own {
            None => {
                let options = with_user(&mut url, ConnectOptions::new())?;
                with_tls(&mut url, tls, options)?
            }
            Some(own) => {
                url.without_user()?;
                (own, true)
            }
        };
        let options = options
            .with_connect_timeout(connect_timeout)
            .with_keep_alive(PING, response_timeout)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let scheme = if tls { "https" } else { "http" };
        let endpoints = url.addresses(DEFAULT_PORT)?;
        let endpoints = endpoints.iter().map(host_and_port);
        let endpoints = endpoints.map(|host| format!("{scheme}://{host}")).collect();
        url.finish()?;
        Ok(Self {
            endpoints,
            options,
            store,
            tls,
            certificate,
            connect_timeout,
            response_timeout,
            claim_window,
            layout,
        })
    }
}

fn with_user(url: &mut StoreUrl, options: ConnectOptions) -> Result<ConnectOptions> {
    match (url.user.clone(), url.take_password()?) {
        (None, None) => Ok(options),
        (Some(user), Some(password)) => Ok(options.with_user(user, password)),
        (Some(_), None) => Err(url.refuse("it has a user and no password; give both, or neither")),
        (None, Some(_)) => Err(url.refuse("it has a password and no user; give both, or neither")),
    }
}

/// Sets up TLS if the URL asks for it. Also returns whether the client has a certificate.
#[cfg(feature = "tls")]
fn with_tls(
    url: &mut StoreUrl,
    tls: bool,
    options: ConnectOptions,
) -> Result<(ConnectOptions, bool)> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let files = fencelock_core::engine::TlsFiles::take(url);
    match files.given() {
        Some(option) if !tls => {
            return Err(url.refuse(format!("{option} needs TLS; write etcds://")));
        }
        _ if !tls => return Ok((options, false)),
        _ => {}
    }
    let texts = files.read(url)?;
    let settings = match texts.ca {
        Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
        None => TlsOptions::new().with_native_roots(),
    };
    Ok(match texts.identity {
        Some((cert, key)) => {
            let settings = settings.identity(Identity::from_pem(cert, key));
            (options.with_tls(settings), true)
        }
        None => (options.with_tls(settings), false),
    })
}

#[cfg(not(feature = "tls"))]
fn with_tls(
    url: &mut StoreUrl,
    tls: bool,
    options: ConnectOptions,
) -> Result<(ConnectOptions, bool)> {
    match tls {
        true => Err(url.refuse_part(
            fencelock_core::ConfigPart::Build,
            "this build has no TLS; build it with the feature tls",
        )),
        false => Ok((options, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(text)?.into())
    }

    #[test]
    fn reads_urls() {
        let config = read("etcd://a,b:1,[::1]:2,[::2]?layout=concurrency&claim-window=3s").unwrap();
        let endpoints = [
            "http://a:2379",
            "http://b:1",
            "http://[::1]:2",
            "http://[::2]:2379",
        ];
        assert_eq!(config.endpoints, endpoints);
        assert_eq!(config.layout, Layout::Concurrency);
        assert_eq!(config.claim_window, Duration::from_secs(3));
        assert!(!config.tls);
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, word) in [
            ("etcd://", "host"),
            ("etcd://h:port", "port"),
            ("etcd://h:0", "port"),
            ("etcd://h,h", "twice"),
            ("etcd://h/x", "path"),
            ("etcd://u@h", "password"),
            ("etcd://h?layout=x", "layout"),
            ("etcd://h?claim-window=1ms", "claim-window"),
            ("etcd://h?claim-windows=1s", "claim-window"),
            ("etcd://h?response-timeout=0", "response-timeout"),
            #[cfg(feature = "tls")]
            ("etcd://h?tls-ca=/x", "etcds"),
            #[cfg(feature = "tls")]
            ("etcds://h?tls-ca=/no/such/file", "/no/such/file"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["a", "[::1]:2"]).user("me").password("p@ss");
        let options = options
            .layout(Layout::Concurrency)
            .claim_window(Duration::from_secs(3));
        let options = options.response_timeout(Duration::from_millis(1500));
        assert!(!format!("{options:?}").contains("p@ss"));
        let url =
            "etcd://me:p%40ss@a,[::1]:2?layout=concurrency&claim-window=3s&response-timeout=1.5s";
        let [by_setters, by_url] =
            [Config::new(options), read(url)].map(|config| format!("{:?}", config.unwrap()));
        assert_eq!(by_setters, by_url);
    }

    #[test]
    fn setters_are_refused_as_the_url_is() {
        let (one, none) = (|| Options::new(["h"]), [""; 0]);
        let own = || Options::from_endpoints(["http://h:1"], ConnectOptions::new());
        for (options, word) in [
            (Options::new(none), "host"),
            (Options::new(["h:port"]), "port"),
            (Options::new(["h", "h"]), "twice"),
            (one().user("u"), "password"),
            (one().claim_window(Duration::from_millis(1)), "claim-window"),
            (one().response_timeout(Duration::ZERO), "response-timeout"),
            (one().tls_ca("/x"), "tls-ca"),
            (own().user("u"), "user"),
            (own().password("p"), "password"),
            (own().tls(), "tls"),
            (
                Options::from_endpoints(["http://h:1/x"], ConnectOptions::new()),
                "port",
            ),
        ] {
            let error = Config::new(options).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
