//! The options of a store, checked.

use std::time::Duration;

use fencelock_core::engine::{Address, TlsFiles, host_and_port};
use fencelock_core::{Result, StoreUrl};

use super::options::Options;
use crate::client::{DEFAULT_PORT, client, credentials, database, own as own_client, tcp};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(30);
/// The least ratio of every ttl to the timeout of one node.
const TIMEOUTS_PER_TTL: u32 = 5;
/// How much longer than the longest lease a restarted node does not vote.
const MARGIN: Duration = Duration::from_secs(2);

/// The checked options.
#[derive(Debug)]
pub(crate) struct Config {
    /// The nodes by name, each with its client.
    pub(crate) nodes: Vec<(String, redis::Client)>,
    /// The URL without passwords.
    pub(crate) store: String,
    /// How many nodes must agree.
    pub(crate) quorum: usize,
    /// How long one node may take to reply.
    pub(crate) node_timeout: Duration,
    /// How long connecting and preparing may take.
    pub(crate) connect_timeout: Duration,
    /// The longest lease with its lock-delay.
    pub(crate) max_ttl: Duration,
    /// Whether the first node is asked alone, before the others, after a split vote.
    pub(crate) gate: bool,
    /// The store was opened only for inspection. Nothing is written, so no node is admitted either.
    pub(crate) inspect_only: bool,
    /// Whether a restarted node waits before it votes. Only tests that show why switch this off.
    pub(crate) delayed_restart: bool,
}

impl Config {
    pub(crate) fn new(options: Options, delayed_restart: bool) -> Result<Self> {
        let Options { mut url, own } = options;
        let connect_timeout = url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?;
        let node_timeout = url.take_timeout("node-timeout", NODE_TIMEOUT)?;
        let max_ttl = url.take_duration("max-ttl")?.unwrap_or(MAX_TTL);
        if node_timeout < Duration::from_millis(1) {
            return Err(url.refuse("node-timeout must be 1ms at least"));
        }
        if node_timeout * TIMEOUTS_PER_TTL * 2 > max_ttl {
            return Err(url.refuse(format!(
                "node-timeout is {node_timeout:?}; it must be far below every ttl, a tenth of max-ttl ({max_ttl:?}) at most"
            )));
        }
        let addresses = url.clone().take_hosts()?;
        let addresses = addresses.iter();
        let addresses = addresses.map(|host| url.address(&host.host, DEFAULT_PORT));
        let addresses: Vec<_> = addresses.collect::<Result<_>>()?;
        let quorum = quorum(&mut url, addresses.len())?;
        let database = database(&url)?;
        let clients = match own.is_empty() {
            true => clients(&mut url, &addresses, database)?,
            false => {
                url.without_user()?;
                let own = own.iter().map(own_client).collect::<Result<_, _>>();
                own.map_err(|error| url.refuse(error.to_string()))?
            }
        };
        let mut nodes: Vec<(String, redis::Client)> = Vec::new();
        for (address, client) in addresses.iter().zip(clients) {
            let name = host_and_port(address);
            if nodes.iter().any(|(other, _)| *other == name) {
                let why = format!("it names the node {name} twice; each node has one vote");
                return Err(url.refuse(why));
            }
            nodes.push((name, client));
        }
        let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        let mut store = format!("{}://{}", url.scheme, names.join(","));
        if database != 0 {
            store.push_str(&format!("/{database}"));
        }
        let config = Self {
            store,
            nodes,
            quorum,
            node_timeout,
            connect_timeout,
            max_ttl,
            gate: url.take_choice("first-node-gate", &[("no", false), ("yes", true)])?,
            inspect_only: url.inspect_only,
            delayed_restart,
        };
        url.finish()?;
        Ok(config)
    }

    /// The shortest ttl: the timeout of one node must be far below it.
    pub(crate) fn min_ttl(&self) -> Duration {
        self.node_timeout * TIMEOUTS_PER_TTL
    }

    /// How long a server process that may have lost grants does not vote, `longest` being the longest lease in use.
    pub(crate) fn delay(&self, longest: Duration) -> Duration {
        match self.delayed_restart {
            true => longest.max(self.max_ttl) + MARGIN,
            false => Duration::ZERO,
        }
    }
}

fn quorum(url: &mut StoreUrl, nodes: usize) -> Result<usize> {
    let asked = url.take_number("quorum")?;
    if nodes < 3 {
        return Err(url.refuse(
            "it names fewer than three nodes, of which a majority survives nothing; name three or five: \
             redlock://H1:P1,H2:P2,H3:P3",
        ));
    }
    let majority = nodes / 2 + 1;
    let quorum = asked.map_or(majority, |quorum| usize::try_from(quorum).unwrap_or(0));
    if quorum < majority || quorum > nodes {
        return Err(url.refuse(format!(
            "quorum={quorum} of {nodes} nodes: two holders at once would be possible, or none; it must be from \
             {majority} to {nodes}"
        )));
    }
    Ok(quorum)
}

/// A client for each node.
fn clients(url: &mut StoreUrl, addresses: &[Address], database: i64) -> Result<Vec<redis::Client>> {
    let encrypted = match url.scheme.as_str() {
        "redlock" => false,
        "redlocks" => true,
        other => {
            return Err(url.refuse(format!(
                "the scheme {other} is not one of Redlock; write redlock://HOST1,HOST2,HOST3"
            )));
        }
    };
    let (hosts, tls) = (url.take_hosts()?, TlsFiles::take(url));
    let clients = hosts.into_iter().zip(addresses).map(|(host, address)| {
        let settings = credentials(url, host.user.as_deref(), host.password)?.set_db(database);
        let addr = tcp(address.clone(), encrypted);
        client(url, addr, settings, &tls, "redlocks")
    });
    clients.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(text)?.into(), true)
    }

    #[test]
    fn reads_a_url() {
        let url = "redlock://:a@h1:1,me:b@h2:2,h3/4?quorum=3&node-timeout=20ms&max-ttl=1m";
        let config = read(url).unwrap();
        let info = |i: usize| config.nodes[i].1.get_connection_info().redis_settings();
        assert_eq!(info(0).password(), Some("a"));
        assert_eq!(
            (info(1).username(), info(1).password()),
            (Some("me"), Some("b"))
        );
        assert_eq!((info(2).password(), info(2).db()), (None, 4));
        assert_eq!(config.store, "redlock://h1:1,h2:2,h3:6379/4");
        assert_eq!((config.quorum, config.max_ttl.as_secs()), (3, 60));
        assert_eq!(config.min_ttl(), Duration::from_millis(100));
        assert_eq!(read("redlock://a,b,c,d,e").unwrap().quorum, 3);
        assert!(!format!("{config:?}").contains("\"a\""));
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, word) in [
            ("redlock://a,b", "three"),
            ("redlock://a,b,a", "twice"),
            ("redlock://a,b,a:6379", "twice"),
            ("redlock://a,b,c?quorum=1", "from 2 to 3"),
            ("redlock://a,b,c,d,e?quorum=2", "from 3 to 5"),
            ("redlock://a,b,c?quorum=4", "from 2 to 3"),
            ("redlock://a,b,c?node-timeout=4s", "far below"),
            ("redlock://a,b,c?node-timeout=0", "node-timeout"),
            ("redlock://a,b,c?first-node-gate=maybe", "no, yes"),
            ("redlock://a,b,c?claim-window=1s", "node-timeout"),
            ("redlock://a,b,c/x", "database"),
            ("redlock://a,b,c:x", "port"),
            ("redlock://a,b,c?tls-ca=/x", "redlocks"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["h1:1", "h2:2", "h3"])
            .user("me")
            .password("b");
        let options = options.database(4).tls().quorum(3).first_node_gate(true);
        let options = options.node_timeout(Duration::from_millis(20));
        #[cfg(not(feature = "tls"))]
        assert!(Config::new(options, true).is_err());
        #[cfg(feature = "tls")]
        {
            let url =
                "redlocks://me:b@h1:1,h2:2,h3/4?quorum=3&first-node-gate=yes&node-timeout=20ms";
            let by_setters = Config::new(options, true).unwrap();
            assert_eq!(
                format!("{by_setters:?}"),
                format!("{:?}", read(url).unwrap())
            );
        }
        let hosts = ["a", "b", "c"];
        for (options, word) in [
            (Options::new(["a", "b"]), "three"),
            (Options::new(hosts).quorum(1), "from 2 to 3"),
            (
                Options::new(hosts).node_timeout(Duration::from_secs(4)),
                "far below",
            ),
            (Options::new(hosts).tls_ca("/x"), "redlocks"),
            (Options::from_clients(Vec::new()), "three"),
        ] {
            let error = Config::new(options, true).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
