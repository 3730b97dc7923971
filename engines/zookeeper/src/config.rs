//! The store's URL, read once.

use std::time::Duration;

use fencelock_core::{Result, StoreUrl};
use zookeeper_client::Acls;

const DEFAULT_PORT: u16 = 2181;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1500);
const CLAIM_WINDOW: Duration = Duration::from_secs(6);

/// Where the servers are, and how long the engine waits for them.
#[derive(Clone)]
pub(crate) struct Config {
    /// `host:port,host:port`.
    pub(crate) servers: String,
    /// The path of the chroot: empty, or with a slash before each part.
    pub(crate) root: String,
    /// The URL without its password.
    pub(crate) store: String,
    /// `user:password`.
    pub(crate) digest: Option<String>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// The engine only reads: it creates nothing and needs no right to write.
    pub(crate) inspect_only: bool,
    /// The session timeout of waiting claims.
    pub(crate) claim_window: Duration,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<zookeeper_client::TlsOptions>,
}

impl Config {
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let store = url.to_string();
        let inspect_only = url.inspect_only;
        let password = url.take_password()?;
        let connect_timeout = url.take_duration("connect-timeout")?;
        let connect_timeout = connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        let response_timeout = url.take_duration("response-timeout")?;
        let response_timeout = response_timeout.unwrap_or(RESPONSE_TIMEOUT);
        let claim_window = url.take_duration("claim-window")?.unwrap_or(CLAIM_WINDOW);
        for (option, value) in [
            ("connect-timeout", connect_timeout),
            ("response-timeout", response_timeout),
            ("claim-window", claim_window),
        ] {
            if value.is_zero() {
                return Err(url.refuse(format!("{option} is 0, but every reply takes some time")));
            }
        }
        let digest = match (&url.user, password) {
            (Some(user), Some(password)) => Some(format!("{user}:{password}")),
            (None, None) => None,
            (Some(_), None) => {
                return Err(url
                    .refuse("it has a user without a password; digest authentication needs both"));
            }
            (None, Some(_)) => {
                return Err(url
                    .refuse("it has a password without a user; digest authentication needs both"));
            }
        };
        let files = [
            url.take("tls-ca"),
            url.take("tls-cert"),
            url.take("tls-key"),
        ];
        #[cfg(feature = "tls")]
        let tls = tls(&url, &files)?;
        #[cfg(not(feature = "tls"))]
        if files.iter().any(Option::is_some) {
            return Err(url.refuse("this build has no TLS; build with the feature tls"));
        }
        let servers = servers(&url)?;
        let root = root(&url)?;
        url.finish()?;
        Ok(Self {
            servers,
            root,
            store,
            digest,
            connect_timeout,
            response_timeout,
            inspect_only,
            claim_window,
            #[cfg(feature = "tls")]
            tls,
        })
    }

    /// The path of the chroot's node.
    pub(crate) fn root_path(&self) -> &str {
        match self.root.as_str() {
            "" => "/",
            root => root,
        }
    }

    pub(crate) fn has_tls(&self) -> bool {
        #[cfg(feature = "tls")]
        let tls = self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        let tls = false;
        tls
    }

    /// The rights on new nodes: for the URL's user alone, or for everybody if it names none.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.digest {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        }
    }
}

fn servers(url: &StoreUrl) -> Result<String> {
    if url.hosts.is_empty() {
        return Err(url.refuse("it names no host; write zookeeper://HOST:PORT,HOST:PORT/CHROOT"));
    }
    let mut servers = Vec::new();
    for host in &url.hosts {
        let server = match host.rsplit_once(':') {
            // An IPv6 address is in brackets.
            Some((_, port)) if !host.ends_with(']') => {
                let good = port.parse().is_ok_and(|port: u16| port != 0);
                if !good {
                    return Err(url.refuse("the text after the colon of a host is no port"));
                }
                host.clone()
            }
            _ => format!("{host}:{DEFAULT_PORT}"),
        };
        servers.push(server);
    }
    Ok(servers.join(","))
}

fn root(url: &StoreUrl) -> Result<String> {
    let mut root = String::new();
    for part in url.path.split('/').filter(|part| !part.is_empty()) {
        if part == "." || part == ".." || part.chars().any(char::is_control) {
            return Err(url.refuse(format!(
                "the chroot has the part {part:?}, which ZooKeeper refuses as the name of a node"
            )));
        }
        root += &format!("/{part}");
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(url.refuse("/zookeeper is the server's own node; choose another chroot"));
    }
    Ok(root)
}

/// TLS, if any of its options is given.
#[cfg(feature = "tls")]
fn tls(
    url: &StoreUrl,
    [ca, cert, key]: &[Option<String>; 3],
) -> Result<Option<zookeeper_client::TlsOptions>> {
    if [ca, cert, key].iter().all(|file| file.is_none()) {
        return Ok(None);
    }
    // rustls has one cryptography provider per process. An application that installed one keeps it.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let read = |option: &str, file: &str| {
        let read = std::fs::read_to_string(file);
        read.map_err(|error| url.refuse(format!("{option}: the file {file}: {error}")))
    };
    let refuse = |error: zookeeper_client::Error| url.refuse(error.to_string());
    let mut tls = zookeeper_client::TlsOptions::default();
    if let Some(ca) = ca {
        tls = tls.with_pem_ca(&read("tls-ca", ca)?).map_err(refuse)?;
    }
    match (cert, key) {
        (Some(cert), Some(key)) => {
            let (cert, key) = (read("tls-cert", cert)?, read("tls-key", key)?);
            tls = tls.with_pem_identity(&cert, &key).map_err(refuse)?;
        }
        (None, None) => {}
        _ => return Err(url.refuse("tls-cert and tls-key belong together; give both")),
    }
    Ok(Some(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn servers_chroot_and_user() {
        let config =
            config("zookeeper://ann:s%3Acret@h1,h2:2182,[::1]:7/a/b/?claim-window=3s").unwrap();
        assert_eq!(config.servers, "h1:2181,h2:2182,[::1]:7");
        assert_eq!(config.root, "/a/b");
        assert_eq!(config.digest.as_deref(), Some("ann:s:cret"));
        assert_eq!(config.claim_window, Duration::from_secs(3));
        assert!(!config.store.contains("cret"));
    }

    #[test]
    fn unusable_urls_are_refused() {
        for (url, why) in [
            ("zookeeper://", "no host"),
            ("zookeeper://h:x", "no port"),
            ("zookeeper://h:0", "no port"),
            ("zookeeper://h/a/../b", "chroot"),
            ("zookeeper://h/zookeeper", "own"),
            ("zookeeper://ann@h", "password"),
            ("zookeeper://:secret@h", "user"),
            ("zookeeper://h?claim-window=0", "claim-window"),
            ("zookeeper://h?tls-cert=/nowhere", "tls"),
        ] {
            let error = config(url).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
