//! The driver's clients for the hosts of a URL, with TLS.

use fencelock_core::engine::{Address, TlsFiles, host_and_port};
use fencelock_core::{Result, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

pub(crate) const DEFAULT_PORT: u16 = 6379;

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

/// Gives a URL the scheme for TLS.
pub(crate) fn encrypt(url: &mut StoreUrl) {
    let scheme = match url.scheme.as_str() {
        "redlock" => "redlocks".to_owned(),
        "redis" | "valkey" => "rediss".to_owned(),
        scheme => scheme.replacen("redis+", "rediss+", 1),
    };
    url.set_scheme(scheme);
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

/// Redis takes a user only together with a password: without one, the connection would be that of the default user.
pub(crate) fn credentials(
    url: &StoreUrl,
    user: Option<&str>,
    password: Option<String>,
) -> Result<RedisConnectionInfo> {
    let mut settings = RedisConnectionInfo::default();
    let Some(password) = password else {
        return match user {
            Some(_) => Err(url.refuse(
                "it names a user without a password; give it in the URL, or with password-env or password-file (for the \
                 Sentinels sentinel-password-env or sentinel-password-file)",
            )),
            None => Ok(settings),
        };
    };
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    Ok(settings.set_password(password))
}

/// A client for one server. `tls_scheme` is the scheme that the URL must have for TLS.
pub(crate) fn client(
    url: &StoreUrl,
    addr: ConnectionAddr,
    settings: RedisConnectionInfo,
    tls: &TlsFiles,
    tls_scheme: &str,
) -> Result<redis::Client> {
    let refuse = |error: redis::RedisError| url.refuse(error.to_string());
    let encrypted = matches!(addr, ConnectionAddr::TcpTls { .. });
    if tls.given().is_some() && !encrypted {
        let why = format!("it has tls- options, but its scheme has no TLS; write {tls_scheme}://");
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
    Err(url.refuse_part(
        fencelock_core::ConfigPart::Build,
        "TLS was not built in; build with the cargo feature `tls`",
    ))
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
    let texts = tls.read(url)?;
    let client_tls = texts
        .identity
        .map(|(client_cert, client_key)| redis::ClientTlsConfig {
            client_cert,
            client_key,
        });
    let certificates = redis::TlsCertificates {
        client_tls,
        root_cert: texts.ca,
    };
    let client = redis::Client::build_with_tls(info, certificates);
    client.map_err(|error| url.refuse(error.to_string()))
}

/// A client for another address, with all other settings of this one.
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

/// A program's own client, as this engine needs it.
pub(crate) fn own(client: &redis::Client) -> redis::RedisResult<redis::Client> {
    let info = client.get_connection_info().clone();
    let settings = info.redis_settings().clone();
    let nodelay = info.tcp_settings().clone().set_nodelay(true);
    let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
    redis::Client::open(info.set_tcp_settings(nodelay))
}

/// The URL of a socket.
pub(crate) fn socket_url(path: &str) -> StoreUrl {
    StoreUrl::new("redis+unix", [""; 0], path.trim_start_matches('/'))
}

/// A program's own clients as a URL without credentials, for errors. The scheme is without TLS.
pub(crate) fn url_of(clients: &[redis::Client], scheme: &str) -> StoreUrl {
    let (mut encrypted, mut socket, mut database) = (false, None, 0);
    let mut hosts = Vec::new();
    for client in clients {
        let info = client.get_connection_info();
        database = info.redis_settings().db();
        match info.addr() {
            ConnectionAddr::Unix(path) => socket = Some(path.display().to_string()),
            ConnectionAddr::TcpTls { host, port, .. } => {
                encrypted = true;
                hosts.push(host_and_port(&(host.clone(), *port)));
            }
            ConnectionAddr::Tcp(host, port) => hosts.push(host_and_port(&(host.clone(), *port))),
            _ => {}
        }
    }
    if let Some(path) = socket {
        return socket_url(&path);
    }
    let path = match database {
        0 => String::new(),
        database => database.to_string(),
    };
    let mut url = StoreUrl::new(scheme, hosts, path);
    if encrypted {
        encrypt(&mut url);
    }
    url
}
