//! The options of the store's URL.

use std::time::Duration;

use etcd_client::ConnectOptions;
use fencelock_core::{Result, StoreUrl};

use crate::layout::Layout;

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
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let store = url.to_string();
        let connect_timeout = timeout(&mut url, "connect-timeout", CONNECT_TIMEOUT)?;
        let response_timeout = timeout(&mut url, "response-timeout", RESPONSE_TIMEOUT)?;
        let claim_window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
        if claim_window < SHORTEST_WINDOW {
            return Err(url.refuse(format!(
                "claim-window is {claim_window:?}; it must be at least {SHORTEST_WINDOW:?}"
            )));
        }
        let layout = layout(&mut url)?;
        if !url.path.is_empty() {
            return Err(url.refuse("it has a path; use the option prefix to separate stores"));
        }
        let tls = url.scheme == "etcds";
        let options = ConnectOptions::new()
            .with_connect_timeout(connect_timeout)
            .with_keep_alive(PING, response_timeout)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let options = with_user(&mut url, options)?;
        let (options, certificate) = with_tls(&mut url, tls, options)?;
        let endpoints = endpoints(&url, if tls { "https" } else { "http" })?;
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

fn timeout(url: &mut StoreUrl, option: &'static str, default: Duration) -> Result<Duration> {
    let value = url.take_duration(option)?.unwrap_or(default);
    if value.is_zero() {
        return Err(url.refuse(format!("{option} is 0; it must be positive")));
    }
    Ok(value)
}

fn layout(url: &mut StoreUrl) -> Result<Layout> {
    match url.take("layout").as_deref() {
        None | Some("fencelock") => Ok(Layout::Fencelock),
        Some("concurrency") => Ok(Layout::Concurrency),
        Some(other) => Err(url.refuse(format!(
            "layout={other} is unknown; use fencelock or concurrency"
        ))),
    }
}

fn with_user(url: &mut StoreUrl, options: ConnectOptions) -> Result<ConnectOptions> {
    match (url.user.clone(), url.take_password()?) {
        (None, None) => Ok(options),
        (Some(user), Some(password)) => Ok(options.with_user(user, password)),
        (Some(_), None) => Err(url.refuse("it has a user and no password")),
        (None, Some(_)) => Err(url.refuse("it has a password and no user")),
    }
}

fn endpoints(url: &StoreUrl, scheme: &str) -> Result<Vec<String>> {
    if url.hosts.is_empty() {
        return Err(url.refuse("it names no host; write etcd://HOST:PORT"));
    }
    let mut endpoints = Vec::new();
    for host in &url.hosts {
        // An IPv6 address is in brackets.
        let after_address = host
            .rsplit_once(']')
            .map_or(host.as_str(), |(_, rest)| rest);
        let endpoint = match after_address.split_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
                format!("{scheme}://{host}")
            }
            Some(_) => {
                return Err(
                    url.refuse("a host is followed by a colon and something that is not a port")
                );
            }
            None => format!("{scheme}://{host}:{DEFAULT_PORT}"),
        };
        if endpoints.contains(&endpoint) {
            return Err(url.refuse(format!("it names {host} twice")));
        }
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// Sets up TLS if the URL asks for it. Also returns whether the client has a certificate.
#[cfg(feature = "tls")]
fn with_tls(
    url: &mut StoreUrl,
    tls: bool,
    options: ConnectOptions,
) -> Result<(ConnectOptions, bool)> {
    use etcd_client::{Certificate, Identity, TlsOptions};
    let files = ["tls-ca", "tls-cert", "tls-key"].map(|option| (option, url.take(option)));
    if !tls {
        return match files.iter().find(|(_, file)| file.is_some()) {
            Some((option, _)) => Err(url.refuse(format!("{option} needs etcds://"))),
            None => Ok((options, false)),
        };
    }
    let read = |(option, file): &(&str, Option<String>)| -> Result<Option<Vec<u8>>> {
        let Some(file) = file else { return Ok(None) };
        let text = std::fs::read(file);
        let refuse = |error| url.refuse(format!("{option}={file} cannot be read: {error}"));
        text.map(Some).map_err(refuse)
    };
    let [ca, cert, key] = [&files[0], &files[1], &files[2]].map(read);
    let mut settings = match ca? {
        Some(ca) => TlsOptions::new().ca_certificate(Certificate::from_pem(ca)),
        None => TlsOptions::new().with_native_roots(),
    };
    let certificate = match (cert?, key?) {
        (Some(cert), Some(key)) => {
            settings = settings.identity(Identity::from_pem(cert, key));
            true
        }
        (None, None) => false,
        _ => return Err(url.refuse("tls-cert and tls-key must both be given; one is missing")),
    };
    Ok((options.with_tls(settings), certificate))
}

#[cfg(not(feature = "tls"))]
fn with_tls(
    url: &mut StoreUrl,
    tls: bool,
    options: ConnectOptions,
) -> Result<(ConnectOptions, bool)> {
    match tls {
        true => Err(url.refuse("this build has no TLS; build it with the feature tls")),
        false => Ok((options, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
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
}
