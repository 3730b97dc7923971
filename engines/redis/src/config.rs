//! The options of a store, checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use fencelock_core::engine::Address;
use fencelock_core::engine::TlsFiles;
use fencelock_core::{ConfigPart, Error, Result, StoreUrl};
use redis::ConnectionAddr;

use crate::client::{self, DEFAULT_PORT, at, client, credentials, database, tcp};
use crate::options::Options;

const SENTINEL_PORT: u16 = 26379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const CLAIM_WINDOW: Duration = Duration::from_secs(2);
/// A shorter window would end before a busy process has read its messages.
const SHORTEST_WINDOW: Duration = Duration::from_millis(50);

/// How the servers of the store belong together.
#[derive(Debug)]
pub(crate) enum Deployment {
    /// One server.
    One,
    /// A master and its replicas. The Sentinels say which server is the master.
    Sentinel {
        /// The Sentinels' name for them.
        master: String,
        sentinels: Vec<redis::Client>,
    },
    /// A cluster, of which these are some nodes.
    Cluster(Vec<redis::Client>),
}

/// The checked options.
#[derive(Debug)]
pub(crate) struct Config {
    /// The client for the only server. With several servers it is a template, whose address is not used.
    pub(crate) client: redis::Client,
    pub(crate) deployment: Deployment,
    /// Addresses to use instead of those that the Sentinels or the cluster report.
    address_map: BTreeMap<Address, Address>,
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// How long a handed-over lock waits for its new holder to confirm.
    pub(crate) claim_window: Duration,
    pub(crate) restart_delay: Duration,
    /// How many replicas must have a grant before it counts.
    pub(crate) replicas: u32,
    /// For how long a new master grants nothing.
    pub(crate) promotion_delay: Duration,
    /// Whether the store is opened only for inspection.
    pub(crate) inspect_only: bool,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let store = url.to_string();
        let kind = Kind::of(&url)?;
        let clients = match own.is_empty() {
            true => kind.clients(&mut url)?,
            false => {
                url.without_user()?;
                let own = own.iter().map(client::own).collect::<Result<_, _>>();
                own.map_err(|error| url.refuse(error.to_string()))?
            }
        };
        let Some((client, others)) = clients.split_first() else {
            return Err(url.refuse("the list of clients is empty; give one for each server"));
        };
        let client = client.clone();
        let mut promotion_delay = Duration::ZERO;
        let deployment = match kind {
            Kind::Socket | Kind::One => Deployment::One,
            Kind::Sentinel => {
                promotion_delay = url.take_duration("promotion-delay")?.unwrap_or_default();
                Deployment::Sentinel {
                    master: url.path.clone(),
                    sentinels: others.to_vec(),
                }
            }
            Kind::Cluster => Deployment::Cluster(clients),
        };
        let address_map = match &deployment {
            Deployment::One => None,
            _ => url.take("address-map"),
        };
        let address_map = address_map.map(|text| self::address_map(&url, &text));
        let config = Self {
            client,
            deployment,
            address_map: address_map.transpose()?.unwrap_or_default(),
            store,
            connect_timeout: url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?,
            response_timeout: url.take_timeout("response-timeout", RESPONSE_TIMEOUT)?,
            claim_window: claim_window(&mut url)?,
            restart_delay: url.take_duration("restart-delay")?.unwrap_or_default(),
            replicas: replicas(&mut url)?,
            promotion_delay,
            inspect_only: url.inspect_only,
        };
        url.finish()?;
        Ok(config)
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

    /// A client for a server at an address that the Sentinels or the cluster reported.
    pub(crate) fn client_at(&self, told: &Address) -> Result<redis::Client> {
        let address = self.address_map.get(told).unwrap_or(told);
        at(&self.client, address)
            .map_err(|error| Error::config(&self.store, ConfigPart::Url, error.to_string()))
    }
}

fn claim_window(url: &mut StoreUrl) -> Result<Duration> {
    let window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
    if window < SHORTEST_WINDOW {
        return Err(url.refuse(format!(
            "claim-window is {window:?}; it must be {SHORTEST_WINDOW:?} at least"
        )));
    }
    Ok(window)
}

fn replicas(url: &mut StoreUrl) -> Result<u32> {
    let replicas = url.take_number("replicas")?.unwrap_or(0);
    u32::try_from(replicas).map_err(|_| {
        url.refuse(format!(
            "replicas={replicas} is too many; give the number of the replicas"
        ))
    })
}

/// The kind of servers that a scheme means.
#[derive(Clone, Copy)]
enum Kind {
    Socket,
    One,
    Sentinel,
    Cluster,
}

impl Kind {
    fn of(url: &StoreUrl) -> Result<Self> {
        Ok(match url.scheme.as_str() {
            "redis+unix" => Self::Socket,
            "redis" | "valkey" | "rediss" => Self::One,
            "redis+sentinel" | "rediss+sentinel" => Self::Sentinel,
            "redis+cluster" | "rediss+cluster" => Self::Cluster,
            other => {
                return Err(url.refuse(format!(
                    "the scheme {other} is not one of Redis; write redis://HOST"
                )));
            }
        })
    }

    /// The clients for the hosts of a URL. The first is for the only server, or a template whose address is not used. The
    /// clients for Sentinels follow it.
    fn clients(self, url: &mut StoreUrl) -> Result<Vec<redis::Client>> {
        let password = url.take_password()?;
        let settings = credentials(url, url.user.as_deref(), password)?;
        let tls = TlsFiles::take(url);
        let encrypted = url.scheme.starts_with("rediss");
        let client_for =
            |url: &StoreUrl, addr, settings| client(url, addr, settings, &tls, "rediss");
        match self {
            Self::Socket => return Ok(vec![client_for(url, unix(url)?, settings)?]),
            Self::Sentinel if url.path.is_empty() => {
                return Err(url.refuse(
                    "it names no master; write redis+sentinel://HOST:PORT,HOST:PORT/MASTER",
                ));
            }
            Self::Cluster if !url.path.is_empty() => {
                return Err(url
                    .refuse("a cluster has no numbered databases; write nothing after the hosts"));
            }
            _ => {}
        }
        let settings = match self {
            Self::One => settings.set_db(database(url)?),
            _ => settings,
        };
        let port = match self {
            Self::Sentinel => SENTINEL_PORT,
            _ => DEFAULT_PORT,
        };
        let addresses = url.addresses(port)?;
        let client = client_for(url, tcp(addresses[0].clone(), encrypted), settings)?;
        let all_like = |client: &redis::Client| {
            let clients = addresses.iter().map(|address| at(client, address));
            clients.collect::<redis::RedisResult<Vec<_>>>()
        };
        let clients = match self {
            Self::Sentinel => {
                let user = url.take("sentinel-user");
                let password = url.take_secret("sentinel-password")?;
                let settings = credentials(url, user.as_deref(), password)?;
                let info = client.get_connection_info().clone();
                let sentinels = redis::Client::open(info.set_redis_settings(settings));
                let sentinels = sentinels.and_then(|client| all_like(&client));
                sentinels.map(|sentinels| [vec![client], sentinels].concat())
            }
            Self::Cluster => all_like(&client),
            _ if addresses.len() > 1 => {
                return Err(url.refuse("it names several hosts; this kind of store is one server"));
            }
            _ => Ok(vec![client]),
        };
        clients.map_err(|error| url.refuse(error.to_string()))
    }
}

/// `TOLD=REAL,TOLD=REAL`, each `host:port`.
fn address_map(url: &StoreUrl, text: &str) -> Result<BTreeMap<Address, Address>> {
    let pairs = text.split(',').map(|pair| {
        let (told, real) = pair.split_once('=').ok_or_else(|| {
            url.refuse(format!(
                "{pair:?} in address-map is not HOST:PORT=HOST:PORT"
            ))
        })?;
        Ok((url.address(told, 0)?, url.address(real, 0)?))
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
        Config::new(StoreUrl::parse(text)?.into())
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
            ("redis://me@h", "without a password"),
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

    #[test]
    fn setters_say_what_the_url_says() {
        let seconds = Duration::from_secs;
        let one = Options::new("h:7000")
            .user("me")
            .password("secret")
            .database(3);
        let one = one.claim_window(seconds(1)).restart_delay(seconds(30));
        let one = one.connect_timeout(Duration::from_micros(1_234_567));
        let group = || Options::sentinel(["h1", "[::1]:8"], "main").promotion_delay(seconds(2));
        let group = group()
            .address_map([("x:1", "y:2")])
            .response_timeout(seconds(1));
        let cluster = Options::cluster(["h1", "h2:7"]).replicas(2);
        for (options, url) in [
            (
                one,
                "redis://me:secret@h:7000/3?claim-window=1s&restart-delay=30s&connect-timeout=1.234567s",
            ),
            (
                group,
                "redis+sentinel://h1,[::1]:8/main?promotion-delay=2s&address-map=x:1=y:2&response-timeout=1s",
            ),
            (cluster, "redis+cluster://h1,h2:7?replicas=2"),
            (Options::unix("/run/r.sock"), "redis+unix:///run/r.sock"),
        ] {
            let shown = format!("{options:?}");
            assert!(!shown.contains("secret"), "{shown}");
            let [by_setters, by_url] =
                [Config::new(options), read(url)].map(|config| format!("{:?}", config.unwrap()));
            assert_eq!(by_setters, by_url);
        }
    }

    #[test]
    fn setters_are_refused_as_the_url_is() {
        let (ms, none) = (Duration::from_millis, [""; 0]);
        let one = || Options::new("h");
        for (options, word) in [
            (Options::new(""), "host"),
            (Options::new("a:1,b:2"), "port"),
            (Options::new("h:port"), "port"),
            (Options::new("me:secret@h"), "@"),
            (one().claim_window(ms(1)), "claim-window"),
            (one().response_timeout(ms(0)), "response-timeout"),
            (
                one().restart_delay(Duration::from_nanos(1)),
                "restart-delay",
            ),
            (one().tls_ca("/x"), "rediss"),
            (one().promotion_delay(ms(1)), "promotion-delay"),
            (one().password("secret").password_env("HOME"), "twice"),
            (Options::sentinel(["h"], ""), "master"),
            (Options::sentinel(none, "m"), "host"),
            (Options::sentinel(["h", "h"], "m"), "twice"),
            (
                Options::sentinel(["h"], "m").address_map([("a", "b:2")]),
                "port",
            ),
            (Options::cluster(["h"]).database(1), "database"),
            (Options::cluster_from_clients(Vec::new()), "host"),
        ] {
            let error = Config::new(options).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
