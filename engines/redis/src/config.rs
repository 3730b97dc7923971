//! The options of the store's URL.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fencelock_core::{Error, Result, StoreUrl};
use redis::{ConnectionAddr, ProtocolVersion, RedisConnectionInfo};

pub(crate) use crate::client::Address;
use crate::client::{DEFAULT_PORT, TlsFiles, address, at, client, database, tcp};

const SENTINEL_PORT: u16 = 26379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A shorter window would end before a busy process has read its messages.
const SHORTEST_WINDOW: Duration = Duration::from_millis(50);

/// How the servers of the store belong together.
#[derive(Debug)]
pub(crate) enum Deployment {
    /// There is one.
    One,
    /// A master and its replicas; the Sentinels tell which is which.
    Sentinel {
        /// The Sentinels' name for them.
        master: String,
        sentinels: Vec<redis::Client>,
    },
    /// A cluster, of which these are some nodes.
    Cluster(Vec<redis::Client>),
}

/// What the URL says.
#[derive(Debug)]
pub(crate) struct Config {
    /// For the one server; with several servers a template, whose address does not count.
    pub(crate) client: redis::Client,
    pub(crate) deployment: Deployment,
    /// Addresses to use instead of those that the Sentinels or the cluster tell.
    address_map: BTreeMap<Address, Address>,
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// For how long a handed-over lock waits for its new holder to confirm.
    pub(crate) claim_window: Duration,
    pub(crate) restart_delay: Duration,
    /// How many replicas must have a grant before it counts.
    pub(crate) replicas: u32,
    /// For how long a new master grants nothing.
    pub(crate) promotion_delay: Duration,
    /// Whether the store is opened only to look.
    pub(crate) inspect_only: bool,
}

impl Config {
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let store = url.to_string();
        let settings = credentials(&mut url)?;
        let tls = TlsFiles::take(&mut url);
        let encrypted = url.scheme.starts_with("rediss");
        let client_for =
            |url: &StoreUrl, addr, settings| client(url, addr, settings, &tls, "rediss");
        let mut config = match url.scheme.clone().as_str() {
            "redis+unix" => Self::one(client_for(&url, unix(&url)?, settings)?, store),
            "redis" | "valkey" | "rediss" => {
                let settings = settings.set_db(database(&url)?);
                let addr = tcp(only_host(&url)?, encrypted);
                Self::one(client_for(&url, addr, settings)?, store)
            }
            "redis+sentinel" | "rediss+sentinel" => {
                if url.path.is_empty() {
                    return Err(url.refuse(
                        "it names no master; write redis+sentinel://HOST:PORT,HOST:PORT/MASTER",
                    ));
                }
                let addresses = addresses(&url, SENTINEL_PORT)?;
                let addr = tcp(addresses[0].clone(), encrypted);
                let client = client_for(&url, addr, settings)?;
                let sentinels = sentinels(&mut url, &client, &addresses)?;
                let mut config = Self::one(client, store);
                config.deployment = Deployment::Sentinel {
                    master: url.path.clone(),
                    sentinels,
                };
                let delay = url.take_duration("promotion-delay")?;
                config.promotion_delay = delay.unwrap_or_default();
                config
            }
            "redis+cluster" | "rediss+cluster" => {
                if !url.path.is_empty() {
                    return Err(url.refuse(
                        "a cluster has no numbered databases; write nothing after the hosts",
                    ));
                }
                let addresses = addresses(&url, DEFAULT_PORT)?;
                let addr = tcp(addresses[0].clone(), encrypted);
                let client = client_for(&url, addr, settings)?;
                let clients = addresses.iter().map(|address| at(&client, address));
                let clients: Result<_, _> = clients.collect();
                let clients = clients.map_err(|error| url.refuse(error.to_string()))?;
                let mut config = Self::one(client, store);
                config.deployment = Deployment::Cluster(clients);
                config
            }
            other => {
                return Err(url.refuse(format!("{other}: is not a scheme of this engine")));
            }
        };
        config.read_options(&mut url)?;
        url.finish()?;
        Ok(config)
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
        Ok(Self::one(client, store))
    }

    /// One server, with the defaults of all options.
    fn one(client: redis::Client, store: String) -> Self {
        Self {
            client,
            deployment: Deployment::One,
            address_map: BTreeMap::new(),
            store,
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: RESPONSE_TIMEOUT,
            claim_window: CLAIM_WINDOW,
            restart_delay: Duration::ZERO,
            replicas: 0,
            promotion_delay: Duration::ZERO,
            inspect_only: false,
        }
    }

    /// The options that do not depend on the scheme.
    fn read_options(&mut self, url: &mut StoreUrl) -> Result<()> {
        self.inspect_only = url.inspect_only;
        for (option, value) in [
            ("connect-timeout", &mut self.connect_timeout),
            ("response-timeout", &mut self.response_timeout),
        ] {
            *value = url.take_duration(option)?.unwrap_or(*value);
            if value.is_zero() {
                return Err(url.refuse(format!("{option} is 0; no answer comes in no time")));
            }
        }
        let window = url.take_duration("claim-window")?;
        self.claim_window = window.unwrap_or(CLAIM_WINDOW);
        if self.claim_window < SHORTEST_WINDOW {
            return Err(url.refuse(format!(
                "claim-window is {:?}; it must be {SHORTEST_WINDOW:?} at least",
                self.claim_window
            )));
        }
        self.restart_delay = url.take_duration("restart-delay")?.unwrap_or_default();
        let replicas = url.take_number("replicas")?.unwrap_or(0);
        self.replicas = u32::try_from(replicas)
            .map_err(|_| url.refuse(format!("replicas={replicas} is too many")))?;
        if !matches!(self.deployment, Deployment::One)
            && let Some(text) = url.take("address-map")
        {
            self.address_map = address_map(url, &text)?;
        }
        Ok(())
    }

    /// Whether a replica may take over. Then the token of each grant is at least the server's time.
    pub(crate) fn timed(&self) -> bool {
        !matches!(self.deployment, Deployment::One) || self.replicas > 0
    }

    /// Whether nothing is granted for a while after a restart or a fail-over.
    pub(crate) fn delays(&self) -> bool {
        !self.restart_delay.is_zero() || !self.promotion_delay.is_zero()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.deployment, Deployment::Cluster(_))
    }

    /// A client for a server at the address that the Sentinels or the cluster told.
    pub(crate) fn client_at(&self, told: &Address) -> Result<redis::Client> {
        let address = self.address_map.get(told).unwrap_or(told);
        at(&self.client, address).map_err(|error| Error::config(&self.store, error.to_string()))
    }
}

fn credentials(url: &mut StoreUrl) -> Result<RedisConnectionInfo> {
    let password = url.take_password()?;
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = &url.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    Ok(settings)
}

/// Clients for the Sentinels, which have their own user and password.
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

fn only_host(url: &StoreUrl) -> Result<Address> {
    match url.hosts.as_slice() {
        [host] => address(url, host, DEFAULT_PORT),
        [] => Err(url.refuse("it names no host; write redis://HOST:PORT")),
        _ => Err(url.refuse("it names several hosts; this kind of store is one server")),
    }
}

/// All hosts. None may stand there twice.
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

fn unix(url: &StoreUrl) -> Result<ConnectionAddr> {
    if !url.hosts.is_empty() || url.path.is_empty() {
        return Err(url.refuse("write it with three slashes: redis+unix:///path/of/the.sock"));
    }
    let path = format!("/{}", url.path);
    Ok(ConnectionAddr::Unix(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
    }

    #[test]
    fn reads_a_url() {
        let config = read("redis://me:secret@h:7000/3?claim-window=1s&restart-delay=30s").unwrap();
        let info = config.client.get_connection_info();
        assert_eq!(info.addr(), &ConnectionAddr::Tcp("h".into(), 7000));
        assert_eq!(info.redis_settings().db(), 3);
        assert_eq!(info.redis_settings().password(), Some("secret"));
        assert_eq!(config.claim_window, Duration::from_secs(1));
        assert!(!format!("{config:?}").contains("secret"));
        let config = read("valkey://[::1]").unwrap();
        let addr = ConnectionAddr::Tcp("::1".into(), DEFAULT_PORT);
        assert_eq!(config.client.get_connection_info().addr(), &addr);
        let config = read("redis+unix:///run/r.sock").unwrap();
        let addr = ConnectionAddr::Unix("/run/r.sock".into());
        assert_eq!(config.client.get_connection_info().addr(), &addr);
    }

    #[test]
    fn reads_several_servers() {
        let config = read("redis+sentinel://me:secret@h1,h2:7,[::1]:8/main?address-map=x:1=y:2");
        let config = config.unwrap();
        let Deployment::Sentinel { master, sentinels } = &config.deployment else {
            panic!("{:?}", config.deployment);
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
