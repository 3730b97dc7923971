//! Which nodes there are, and how to deal with them: the store's URL taken apart.

use std::time::Duration;

use fencelock_core::{Error, Result, StoreUrl};
use redis::{ConnectionAddr, RedisConnectionInfo};

use crate::client::{DEFAULT_PORT, TlsFiles, client, database};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
const MAX_TTL: Duration = Duration::from_secs(30);
/// How much shorter than any ttl the time for one node must be.
const FAR_BELOW: u32 = 5;
/// For how much longer than the longest lease a node that was restarted does not vote.
const BEYOND: Duration = Duration::from_secs(2);

/// What the URL says.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The nodes, by name and with what it takes to connect.
    pub(crate) nodes: Vec<(String, redis::Client)>,
    /// The URL without passwords.
    pub(crate) store: String,
    /// How many nodes must agree.
    pub(crate) quorum: usize,
    /// For an answer of one node.
    pub(crate) node_timeout: Duration,
    /// For a connection to be made and prepared.
    pub(crate) connect_timeout: Duration,
    /// The longest lease with its lock-delay that anybody may ask for.
    pub(crate) max_ttl: Duration,
    /// Whether, after a split vote, the first node is asked alone before the others.
    pub(crate) gate: bool,
    /// Opened to look only: nothing is written, so no node is let in either.
    pub(crate) inspect_only: bool,
    /// Whether a node that was restarted is kept from voting. Only tests that show why switch it off.
    pub(crate) delayed_restart: bool,
}

impl Settings {
    pub(crate) fn from_url(mut url: StoreUrl, delayed_restart: bool) -> Result<Self> {
        let hosts = url.take_hosts()?;
        let inspect_only = url.inspect_only;
        let encrypted = match url.scheme.as_str() {
            "redlock" => false,
            "redlocks" => true,
            other => return Err(url.refuse(format!("{other}: is no scheme of this engine"))),
        };
        let connect_timeout = url.take_duration("connect-timeout")?;
        let connect_timeout = connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        let node_timeout = url.take_duration("node-timeout")?.unwrap_or(NODE_TIMEOUT);
        let max_ttl = url.take_duration("max-ttl")?.unwrap_or(MAX_TTL);
        let quorum = url.take_number("quorum")?;
        let gate = match url.take("first-node-gate").as_deref() {
            None | Some("no") => false,
            Some("yes") => true,
            Some(other) => {
                let why = format!("first-node-gate={other} is neither yes nor no");
                return Err(url.refuse(why));
            }
        };
        let tls = TlsFiles::take(&mut url);
        if connect_timeout.is_zero() || node_timeout < Duration::from_millis(1) {
            return Err(url.refuse("connect-timeout and node-timeout must be 1ms at least"));
        }
        if node_timeout * FAR_BELOW * 2 > max_ttl {
            return Err(url.refuse(format!(
                "node-timeout is {node_timeout:?}; it must be far below every ttl, a tenth of max-ttl ({max_ttl:?}) at most"
            )));
        }
        let majority = hosts.len() / 2 + 1;
        if hosts.len() < 3 {
            let why = "it names fewer than three nodes, of which a majority survives nothing; name three or five: \
                       redlock://H1:P1,H2:P2,H3:P3";
            return Err(url.refuse(why));
        }
        let wished = quorum.map_or(majority, |quorum| usize::try_from(quorum).unwrap_or(0));
        if wished < majority || wished > hosts.len() {
            let (count, why) = (
                hosts.len(),
                "two holders at once would be possible, or none",
            );
            return Err(url.refuse(format!(
                "quorum={wished} of {count} nodes: {why}; it must be from {majority} to {count}"
            )));
        }
        let database = database(&url)?;
        let mut nodes: Vec<(String, redis::Client)> = Vec::new();
        for host in &hosts {
            let (name, port) = address(&url, &host.host)?;
            let mut settings = RedisConnectionInfo::default().set_db(database);
            if let Some(user) = &host.user {
                settings = settings.set_username(user);
            }
            if let Some(password) = &host.password {
                settings = settings.set_password(password);
            }
            let shown = format!("{name}:{port}");
            if nodes.iter().any(|(other, _)| *other == shown) {
                let why = "each node has one vote";
                return Err(url.refuse(format!("it names the node {shown} twice; {why}")));
            }
            let addr = match encrypted {
                false => ConnectionAddr::Tcp(name, port),
                true => ConnectionAddr::TcpTls {
                    host: name,
                    port,
                    insecure: false,
                    tls_params: None,
                },
            };
            let client = client(&url, addr, settings, &tls, "redlocks");
            nodes.push((shown, client.map_err(|error| named(error, &url))?));
        }
        let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
        let mut store = format!("{}://{}", url.scheme, names.join(","));
        if database != 0 {
            store.push_str(&format!("/{database}"));
        }
        url.finish()?;
        Ok(Self {
            nodes,
            store,
            quorum: wished,
            node_timeout,
            connect_timeout,
            max_ttl,
            gate,
            inspect_only,
            delayed_restart,
        })
    }

    /// The shortest ttl: the time for one node must be far below it.
    pub(crate) fn min_ttl(&self) -> Duration {
        self.node_timeout * FAR_BELOW
    }

    /// For how long a server process that may have forgotten grants does not vote, `longest` being the longest lease that
    /// anybody uses.
    pub(crate) fn delay(&self, longest: Duration) -> Duration {
        match self.delayed_restart {
            true => longest.max(self.max_ttl) + BEYOND,
            false => Duration::ZERO,
        }
    }
}

/// The scheme for TLS is another one here.
fn named(error: Error, url: &StoreUrl) -> Error {
    match error {
        Error::Config { why, .. } => url.refuse(why.replace("rediss://", "redlocks://")),
        other => other,
    }
}

fn address(url: &StoreUrl, host: &str) -> Result<(String, u16)> {
    // An IPv6 address stands in brackets.
    let (host, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => (address, port.strip_prefix(':')),
        None => match host.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host, None),
        },
    };
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => {
            let parsed = port.parse().ok().filter(|port| *port != 0);
            parsed.ok_or_else(|| url.refuse("what stands after the colon of a host is no port"))?
        }
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Settings> {
        Settings::from_url(StoreUrl::parse(text)?, true)
    }

    #[test]
    fn takes_what_a_url_says() {
        let url = "redlock://:a@h1:1,me:b@h2:2,h3/4?quorum=3&node-timeout=20ms&max-ttl=1m";
        let settings = read(url).unwrap();
        let info = |i: usize| settings.nodes[i].1.get_connection_info().redis_settings();
        assert_eq!(info(0).password(), Some("a"));
        assert_eq!(
            (info(1).username(), info(1).password()),
            (Some("me"), Some("b"))
        );
        assert_eq!((info(2).password(), info(2).db()), (None, 4));
        assert_eq!(settings.store, "redlock://h1:1,h2:2,h3:6379/4");
        assert_eq!((settings.quorum, settings.max_ttl.as_secs()), (3, 60));
        assert_eq!(settings.min_ttl(), Duration::from_millis(100));
        assert_eq!(read("redlock://a,b,c,d,e").unwrap().quorum, 3);
        assert!(!format!("{settings:?}").contains("\"a\""));
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
            ("redlock://a,b,c?first-node-gate=maybe", "neither"),
            ("redlock://a,b,c?claim-window=1s", "node-timeout"),
            ("redlock://a,b,c/x", "database"),
            ("redlock://a,b,c:x", "port"),
            ("redlock://a,b,c?tls-ca=/x", "redlocks"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
