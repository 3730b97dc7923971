//! Where the server is, and how to deal with it: the store's URL taken apart.

use std::path::PathBuf;
use std::time::Duration;

use fencelock_core::{Error, Result, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

const DEFAULT_PORT: u16 = 6379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A shorter window would be over before a busy process has looked at its mail.
const SHORTEST_WINDOW: Duration = Duration::from_millis(50);

/// How to reach a server and how long to wait for it.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) client: redis::Client,
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// How long a lock that was handed over waits for a sign of life.
    pub(crate) window: Duration,
    pub(crate) restart_delay: Duration,
}

/// The files of `tls-ca`, `tls-cert` and `tls-key`.
struct TlsFiles {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Config {
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let store = url.to_string();
        let password = url.take_password()?;
        let connect_timeout = url.take_duration("connect-timeout")?;
        let response_timeout = url.take_duration("response-timeout")?;
        let window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
        let restart_delay = url.take_duration("restart-delay")?.unwrap_or_default();
        let tls = TlsFiles {
            ca: url.take("tls-ca"),
            cert: url.take("tls-cert"),
            key: url.take("tls-key"),
        };
        let connect_timeout = connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        let response_timeout = response_timeout.unwrap_or(RESPONSE_TIMEOUT);
        for (option, value) in [
            ("connect-timeout", connect_timeout),
            ("response-timeout", response_timeout),
        ] {
            if value.is_zero() {
                return Err(url.refuse(format!("{option} is 0; no answer comes in no time")));
            }
        }
        if window < SHORTEST_WINDOW {
            return Err(url.refuse(format!(
                "claim-window is {window:?}; it must be {SHORTEST_WINDOW:?} at least"
            )));
        }
        let mut settings = RedisConnectionInfo::default();
        if let Some(user) = &url.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let addr = match url.scheme.as_str() {
            "redis+unix" => unix(&url)?,
            "redis" | "valkey" => {
                settings = settings.set_db(database(&url)?);
                let (host, port) = host(&url)?;
                ConnectionAddr::Tcp(host, port)
            }
            "rediss" => {
                settings = settings.set_db(database(&url)?);
                let (host, port) = host(&url)?;
                ConnectionAddr::TcpTls {
                    host,
                    port,
                    insecure: false,
                    tls_params: None,
                }
            }
            other => return Err(url.refuse(format!("{other}: is no scheme of this engine"))),
        };
        let client = client(&url, addr, settings, &tls)?;
        url.finish()?;
        Ok(Self {
            client,
            store,
            connect_timeout,
            response_timeout,
            window,
            restart_delay,
        })
    }

    /// For a caller that has a client already.
    pub(crate) fn from_client(client: &redis::Client) -> Result<Self> {
        let info = client.get_connection_info();
        let store = match info.addr() {
            ConnectionAddr::Unix(path) => format!("redis+unix://{}", path.display()),
            ConnectionAddr::TcpTls { host, port, .. } => format!("rediss://{host}:{port}"),
            ConnectionAddr::Tcp(host, port) => format!("redis://{host}:{port}"),
            _ => "redis:".to_owned(),
        };
        let store = match info.redis_settings().db() {
            0 => store,
            db => format!("{store}/{db}"),
        };
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let nodelay = info.tcp_settings().clone().set_nodelay(true);
        let info = info.clone();
        let info = info.set_redis_settings(settings).set_tcp_settings(nodelay);
        let client = redis::Client::open(info);
        let client = client.map_err(|error| Error::config(&store, error.to_string()))?;
        Ok(Self {
            client,
            store,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            window: CLAIM_WINDOW,
            restart_delay: Duration::ZERO,
        })
    }
}

/// The one host, and its port.
fn host(url: &StoreUrl) -> Result<(String, u16)> {
    let host = match url.hosts.as_slice() {
        [] => return Err(url.refuse("it names no host; write redis://HOST:PORT")),
        [host] => host,
        _ => {
            return Err(url.refuse("it names several hosts; this kind of store is one server"));
        }
    };
    // An IPv6 address stands in brackets.
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host.as_str(), None),
        },
    };
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => {
            let parsed = port.parse().ok().filter(|port| *port != 0);
            parsed.ok_or_else(|| url.refuse(format!("{port:?} is no port")))?
        }
    };
    Ok((host.to_owned(), port))
}

fn database(url: &StoreUrl) -> Result<i64> {
    if url.path.is_empty() {
        return Ok(0);
    }
    let number = url.path.parse().ok().filter(|db: &i64| *db >= 0);
    number.ok_or_else(|| {
        let path = &url.path;
        url.refuse(format!(
            "{path:?} after the host is no number of a database; write redis://HOST:PORT/0"
        ))
    })
}

fn unix(url: &StoreUrl) -> Result<ConnectionAddr> {
    if !url.hosts.is_empty() || url.path.is_empty() {
        return Err(url.refuse("write it with three slashes: redis+unix:///path/of/the.sock"));
    }
    Ok(ConnectionAddr::Unix(PathBuf::from(format!(
        "/{}",
        url.path
    ))))
}

fn client(
    url: &StoreUrl,
    addr: ConnectionAddr,
    settings: RedisConnectionInfo,
    tls: &TlsFiles,
) -> Result<redis::Client> {
    let refuse = |error: redis::RedisError| url.refuse(error.to_string());
    let encrypted = matches!(addr, ConnectionAddr::TcpTls { .. });
    let given = tls.ca.is_some() || tls.cert.is_some() || tls.key.is_some();
    if given && !encrypted {
        return Err(url.refuse("it has tls- options without TLS; write rediss://"));
    }
    let info = addr.into_connection_info().map_err(refuse)?;
    let info = info
        .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    if encrypted {
        encrypted_client(url, info, tls)
    } else {
        redis::Client::open(info).map_err(refuse)
    }
}

#[cfg(not(feature = "tls"))]
fn encrypted_client(
    url: &StoreUrl,
    _info: redis::ConnectionInfo,
    _tls: &TlsFiles,
) -> Result<redis::Client> {
    Err(url.refuse("TLS was not built in; build with the cargo feature `tls`"))
}

#[cfg(feature = "tls")]
fn encrypted_client(
    url: &StoreUrl,
    info: redis::ConnectionInfo,
    tls: &TlsFiles,
) -> Result<redis::Client> {
    // The library for TLS keeps its cryptography per process. An application that chose one before keeps its own.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let read = |option: &str, path: &Option<String>| match path {
        None => Ok(None),
        Some(path) => {
            let read = std::fs::read(path);
            let read = read.map_err(|e| url.refuse(format!("the file {path} of {option}: {e}")));
            read.map(Some)
        }
    };
    let root_cert = read("tls-ca", &tls.ca)?;
    let cert = read("tls-cert", &tls.cert)?;
    let key = read("tls-key", &tls.key)?;
    let client_tls = match (cert, key) {
        (None, None) => None,
        (Some(client_cert), Some(client_key)) => Some(redis::ClientTlsConfig {
            client_cert,
            client_key,
        }),
        _ => return Err(url.refuse("tls-cert and tls-key belong together; give both")),
    };
    let certificates = redis::TlsCertificates {
        client_tls,
        root_cert,
    };
    let client = redis::Client::build_with_tls(info, certificates);
    client.map_err(|error| url.refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
    }

    #[test]
    fn takes_what_a_url_says() {
        let config = read("redis://me:secret@h:7000/3?claim-window=1s&restart-delay=30s").unwrap();
        let info = config.client.get_connection_info();
        assert_eq!(info.addr(), &ConnectionAddr::Tcp("h".into(), 7000));
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(info.redis_settings().password(), Some("secret"));
        assert_eq!(config.window, Duration::from_secs(1));
        assert!(!format!("{config:?}").contains("secret"));
        let config = read("valkey://[::1]").unwrap();
        let addr = ConnectionAddr::Tcp("::1".into(), DEFAULT_PORT);
        assert_eq!(config.client.get_connection_info().addr(), &addr);
        let config = read("redis+unix:///run/r.sock").unwrap();
        let addr = ConnectionAddr::Unix("/run/r.sock".into());
        assert_eq!(config.client.get_connection_info().addr(), &addr);
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, word) in [
            ("redis://", "host"),
            ("redis://a,b", "several"),
            ("redis://h:port", "port"),
            ("redis://h:0", "port"),
            ("redis://h/x", "database"),
            ("redis://h/-1", "database"),
            ("redis://h?claim-windows=1s", "claim-window"),
            ("redis://h?claim-window=1ms", "claim-window"),
            ("redis://h?response-timeout=0", "response-timeout"),
            ("redis://h?tls-ca=/x", "rediss"),
            ("redis+unix://h/x", "three slashes"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
