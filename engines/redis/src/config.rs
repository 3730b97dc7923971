//! Where the server is, and how to deal with it: the store's URL taken apart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fencelock_core::{Error, Result, StoreUrl};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

pub(crate) const DEFAULT_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A shorter window would be over before a busy process has looked at its mail.
const SHORTEST_WINDOW: Duration = Duration::from_millis(50);

/// A host and its port.
pub(crate) type Address = (String, u16);

/// Which servers make up the store.
#[derive(Debug)]
pub(crate) enum Servers {
    /// One.
    One,
    /// A master and its replicas; the Sentinels tell which is which.
    Sentinel {
        /// What the Sentinels call them.
        master: String,
        sentinels: Vec<redis::Client>,
    },
    /// A cluster, of which these are some nodes.
    Cluster(Vec<redis::Client>),
}

/// How to reach a server and how long to wait for it.
#[derive(Debug)]
pub(crate) struct Config {
    /// The one server's; else how to deal with any of them, its address apart.
    pub(crate) client: redis::Client,
    pub(crate) servers: Servers,
    /// Where to find a server other than where the Sentinels or the cluster say.
    map: BTreeMap<Address, Address>,
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// How long a lock that was handed over waits for a sign of life.
    pub(crate) window: Duration,
    pub(crate) restart_delay: Duration,
    /// How many replicas must have a grant before it counts.
    pub(crate) replicas: u32,
    /// For how long nothing is granted by a new master.
    pub(crate) promotion_delay: Duration,
    /// Whether the store is opened to look only.
    pub(crate) inspect_only: bool,
}

/// The files of `tls-ca`, `tls-cert` and `tls-key`.
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<String>,
    pub(crate) cert: Option<String>,
    pub(crate) key: Option<String>,
}

impl Config {
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let store = url.to_string();
        let inspect_only = url.inspect_only;
        let password = url.take_password()?;
        let connect_timeout = url.take_duration("connect-timeout")?;
        let response_timeout = url.take_duration("response-timeout")?;
        let window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
        let restart_delay = url.take_duration("restart-delay")?.unwrap_or_default();
        let replicas = url.take_number("replicas")?.unwrap_or(0);
        let replicas = u32::try_from(replicas)
            .map_err(|_| url.refuse(format!("replicas={replicas}: nobody has so many")))?;
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
        let scheme = url.scheme.clone();
        let encrypted = scheme.starts_with("rediss");
        let mut promotion_delay = Duration::ZERO;
        let (addr, kind) = match scheme.as_str() {
            "redis+unix" => (unix(&url)?, Kind::One),
            "redis" | "valkey" | "rediss" => {
                settings = settings.set_db(database(&url)?);
                let [host] = url.hosts.as_slice() else {
                    return Err(url.refuse(match url.hosts.len() {
                        0 => "it names no host; write redis://HOST:PORT",
                        _ => "it names several hosts; this kind of store is one server",
                    }));
                };
                let address = address(&url, host, DEFAULT_PORT)?;
                (tcp(address, encrypted), Kind::One)
            }
            "redis+sentinel" | "rediss+sentinel" => {
                promotion_delay = url.take_duration("promotion-delay")?.unwrap_or_default();
                if url.path.is_empty() {
                    return Err(url.refuse(
                        "it names no master; write redis+sentinel://HOST:PORT,HOST:PORT/MASTER",
                    ));
                }
                let addresses = addresses(&url, SENTINEL_PORT)?;
                (
                    tcp(addresses[0].clone(), encrypted),
                    Kind::Sentinel(addresses),
                )
            }
            "redis+cluster" | "rediss+cluster" => {
                if !url.path.is_empty() {
                    return Err(url.refuse(
                        "a cluster has no numbered databases; write nothing after the hosts",
                    ));
                }
                let addresses = addresses(&url, DEFAULT_PORT)?;
                (
                    tcp(addresses[0].clone(), encrypted),
                    Kind::Cluster(addresses),
                )
            }
            other => return Err(url.refuse(format!("{other}: is no scheme of this engine"))),
        };
        let mut map = BTreeMap::new();
        if !matches!(kind, Kind::One)
            && let Some(text) = url.take("address-map")
        {
            map = address_map(&url, &text)?;
        }
        let client = client(&url, addr, settings, &tls)?;
        let servers = match kind {
            Kind::One => Servers::One,
            Kind::Sentinel(addresses) => Servers::Sentinel {
                master: url.path.clone(),
                sentinels: sentinels(&mut url, &client, &addresses)?,
            },
            Kind::Cluster(addresses) => {
                let clients = addresses.iter().map(|address| at(&client, address));
                let clients: Result<_, _> = clients.collect();
                Servers::Cluster(clients.map_err(|error| url.refuse(error.to_string()))?)
            }
        };
        url.finish()?;
        Ok(Self {
            client,
            servers,
            map,
            store,
            connect_timeout,
            response_timeout,
            window,
            restart_delay,
            replicas,
            promotion_delay,
            inspect_only,
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
            servers: Servers::One,
            map: BTreeMap::new(),
            store,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            window: CLAIM_WINDOW,
            restart_delay: Duration::ZERO,
            replicas: 0,
            promotion_delay: Duration::ZERO,
            inspect_only: false,
        })
    }

    /// Whether a replica may come to take over: then the token of each grant is the server's time at least.
    pub(crate) fn timed(&self) -> bool {
        !matches!(self.servers, Servers::One) || self.replicas > 0
    }

    /// Whether nothing is granted for a while after a restart or a fail-over.
    pub(crate) fn delays(&self) -> bool {
        !self.restart_delay.is_zero() || !self.promotion_delay.is_zero()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }

    /// A client of another server, which is to be dealt with as the first.
    pub(crate) fn client_at(&self, told: &Address) -> Result<redis::Client> {
        let address = self.map.get(told).unwrap_or(told);
        at(&self.client, address).map_err(|error| Error::config(&self.store, error.to_string()))
    }
}

enum Kind {
    One,
    Sentinel(Vec<Address>),
    Cluster(Vec<Address>),
}

fn tcp((host, port): Address, encrypted: bool) -> ConnectionAddr {
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

/// The same client for another address.
fn at(client: &redis::Client, (host, port): &Address) -> redis::RedisResult<redis::Client> {
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

/// Clients of the Sentinels, who may want a user and a password of their own.
fn sentinels(
    url: &mut StoreUrl,
    like: &redis::Client,
    addresses: &[Address],
) -> Result<Vec<redis::Client>> {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = url.take("sentinel-user") {
        settings = settings.set_username(user);
    }
    let env = url.take("sentinel-password-env");
    let file = url.take("sentinel-password-file");
    if let Some(password) = secret(url, env, file)? {
        settings = settings.set_password(password);
    }
    let info = like.get_connection_info().clone();
    let clients = redis::Client::open(info.set_redis_settings(settings)).and_then(|like| {
        let clients = addresses.iter().map(|address| at(&like, address));
        clients.collect()
    });
    clients.map_err(|error| url.refuse(error.to_string()))
}

fn secret(url: &StoreUrl, env: Option<String>, file: Option<String>) -> Result<Option<String>> {
    match (env, file) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(url.refuse(
            "the Sentinels' password is given twice; keep one of sentinel-password-env and sentinel-password-file",
        )),
        (Some(name), None) => std::env::var(&name).map(Some).map_err(|error| {
            let what = "the environment variable";
            url.refuse(format!("{what} {name} of sentinel-password-env: {error}"))
        }),
        (None, Some(path)) => {
            let read = std::fs::read_to_string(&path).map_err(|error| {
                url.refuse(format!("the file {path} of sentinel-password-file: {error}"))
            })?;
            Ok(Some(read.strip_suffix('\n').unwrap_or(&read).to_owned()))
        }
    }
}

/// All hosts, each once.
fn addresses(url: &StoreUrl, default: u16) -> Result<Vec<Address>> {
    let mut all = Vec::new();
    for host in &url.hosts {
        let address = address(url, host, default)?;
        if all.contains(&address) {
            return Err(url.refuse(format!("it names {host} twice")));
        }
        all.push(address);
    }
    if all.is_empty() {
        return Err(url.refuse("it names no host"));
    }
    Ok(all)
}

/// `TOLD=REAL,TOLD=REAL`, each `host:port`.
fn address_map(url: &StoreUrl, text: &str) -> Result<BTreeMap<Address, Address>> {
    let pairs = text.split(',').map(|pair| {
        let (told, real) = pair.split_once('=').ok_or_else(|| {
            url.refuse(format!(
                "{pair:?} in address-map is not HOST:PORT=HOST:PORT"
            ))
        })?;
        Ok((address(url, told, 0)?, address(url, real, 0)?))
    });
    let map: BTreeMap<Address, Address> = pairs.collect::<Result<_>>()?;
    if map.iter().any(|(told, real)| told.1 == 0 || real.1 == 0) {
        return Err(url.refuse("each address in address-map needs its port"));
    }
    Ok(map)
}

/// A host, and its port.
fn address(url: &StoreUrl, host: &str, default: u16) -> Result<Address> {
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
            parsed.ok_or_else(|| url.refuse("what stands after the colon of a host is no port"))?
        }
    };
    Ok((host.to_owned(), port))
}

pub(crate) fn database(url: &StoreUrl) -> Result<i64> {
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

pub(crate) fn client(
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
    fn takes_several_servers() {
        let config = read("redis+sentinel://me:secret@h1,h2:7,[::1]:8/main?address-map=x:1=y:2");
        let config = config.unwrap();
        let Servers::Sentinel { master, sentinels } = &config.servers else {
            panic!("{:?}", config.servers);
        };
        let ports: Vec<_> = sentinels
            .iter()
            .map(|client| client.get_connection_info().addr().to_string())
            .collect();
        assert_eq!(ports, ["h1:26379", "h2:7", "::1:8"]);
        assert_eq!(master, "main");
        let settings = sentinels[0].get_connection_info().redis_settings();
        assert_eq!(settings.password(), None);
        for (told, real) in [(("x".to_owned(), 1), "y:2"), (("z".to_owned(), 1), "z:1")] {
            let client = config.client_at(&told).unwrap();
            let info = client.get_connection_info();
            assert_eq!(info.addr().to_string(), real);
            assert_eq!(info.redis_settings().password(), Some("secret"));
        }
        let config = read("redis+cluster://h1,h2?replicas=1").unwrap();
        assert!(config.is_cluster() && config.replicas == 1);
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
            ("redis://h?promotion-delay=1s", "promotion-delay"),
            ("redis+cluster://h?promotion-delay=1s", "promotion-delay"),
            ("redis+sentinel://h", "master"),
            ("redis+sentinel:///m", "host"),
            ("redis+sentinel://h,h/m", "twice"),
            ("redis+sentinel://h/m?replicas=x", "replicas"),
            ("redis+sentinel://h/m?address-map=a:1", "address-map"),
            ("redis+sentinel://h/m?address-map=a=b:2", "port"),
            ("redis+cluster://h/1", "database"),
            ("redis+cluster://", "host"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
