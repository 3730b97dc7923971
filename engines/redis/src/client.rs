//! Addresses of a URL, and the driver's clients for them, with TLS.

use fencelock_core::{Result, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

pub(crate) const DEFAULT_PORT: u16 = 6379;

pub(crate) type Address = (String, u16);

pub(crate) struct TlsFiles {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl TlsFiles {
    pub(crate) fn take(url: &mut StoreUrl) -> Self {
        Self {
            ca: url.take("tls-ca"),
            cert: url.take("tls-cert"),
            key: url.take("tls-key"),
        }
    }

    fn are_given(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }
}

pub(crate) fn tcp((host, port): Address, encrypted: bool) -> ConnectionAddr {
    if encrypted {
        ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, port)
    }
}

pub(crate) fn address(url: &StoreUrl, host: &str, default: u16) -> Result<Address> {
    // An IPv6 address stands in brackets.
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host, None),
        },
    };
    let port = match port {
        None => default,
        Some(port) => {
            let parsed = port.parse().ok().filter(|port| *port != 0);
            parsed.ok_or_else(|| url.refuse("the text after the colon of a host is not a port"))?
        }
    };
    Ok((host.to_owned(), port))
}

/// The number of the database, from the path.
pub(crate) fn database(url: &StoreUrl) -> Result<i64> {
    if url.path.is_empty() {
        return Ok(0);
    }
    let number = url.path.parse().ok().filter(|db: &i64| *db >= 0);
    number.ok_or_else(|| {
        let path = &url.path;
        url.refuse(format!(
            "{path:?} after the host is not the number of a database; write redis://HOST:PORT/0"
        ))
    })
}

/// A client for one server. `tls_scheme`: what the URL must begin with for TLS.
pub(crate) fn client(
    url: &StoreUrl,
    addr: ConnectionAddr,
    settings: RedisConnectionInfo,
    tls: &TlsFiles,
    tls_scheme: &str,
) -> Result<redis::Client> {
    let refuse = |error: redis::RedisError| url.refuse(error.to_string());
    let encrypted = matches!(addr, ConnectionAddr::TcpTls { .. });
    if tls.are_given() && !encrypted {
        let why = format!("it has tls- options without TLS; write {tls_scheme}://");
        return Err(url.refuse(why));
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
    // rustls has one provider of cryptography per process. One that the application installed before is kept.
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

/// A client for another address that is otherwise like this one.
pub(crate) fn at(
    client: &redis::Client,
    (host, port): &Address,
) -> redis::RedisResult<redis::Client> {
    let info = client.get_connection_info().clone();
    let (host, port) = (host.clone(), *port);
    let addr = match info.addr() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    redis::Client::open(info.set_addr(addr))
}
