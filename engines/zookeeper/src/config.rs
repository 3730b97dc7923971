//! The options of a store, checked.

use std::time::Duration;

use fencelock_core::engine::{TlsFiles, host_and_port};
use fencelock_core::{Result, StoreUrl};
use zookeeper_client::{Acls, Client, Connector};

use crate::options::{Options, Own};

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
    /// Connects to one of the servers, with credentials and TLS.
    pub(crate) connector: Connector,
    /// Whether connections are encrypted.
    pub(crate) secure: bool,
    /// Whether new nodes are for the own user alone.
    pub(crate) private: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    /// The engine only reads: it creates nothing and needs no right to write.
    pub(crate) inspect_only: bool,
    /// The session timeout of waiting claims.
    pub(crate) claim_window: Duration,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let store = url.to_string();
        let connect_timeout = url.take_timeout("connect-timeout", CONNECT_TIMEOUT)?;
        let response_timeout = url.take_timeout("response-timeout", RESPONSE_TIMEOUT)?;
        let claim_window = url.take_timeout("claim-window", CLAIM_WINDOW)?;
        let Own {
            connector,
            secure,
            private,
        } = match own {
            None => connector(&mut url)?,
            Some(own) => {
                url.without_user()?;
                own
            }
        };
        let servers = url.addresses(DEFAULT_PORT)?;
        let servers: Vec<String> = servers.iter().map(host_and_port).collect();
        let config = Self {
            servers: servers.join(","),
            root: root(&url)?,
            store,
            connector,
            secure,
            private,
            connect_timeout,
            response_timeout,
            inspect_only: url.inspect_only,
            claim_window,
        };
        url.finish()?;
        Ok(config)
    }

    /// The path of the chroot's node.
    pub(crate) fn root_path(&self) -> &str {
        match self.root.as_str() {
            "" => "/",
            root => root,
        }
    }

    /// The rights on new nodes: for the own user alone, or for everybody if there is none.
    pub(crate) fn acls(&self) -> Acls<'static> {
        match self.private {
            true => Acls::creator_all(),
            false => Acls::anyone_all(),
        }
    }
}

/// The connector with the credentials and TLS of a URL.
fn connector(url: &mut StoreUrl) -> Result<Own> {
    let mut connector = Client::connector();
    let private = match (url.user.clone(), url.take_password()?) {
        (Some(user), Some(password)) => {
            let digest = format!("{user}:{password}");
            connector = connector.with_auth("digest", digest.as_bytes());
            true
        }
        (None, None) => false,
        (Some(_), None) => {
            let why = "it has a user without a password; digest authentication needs both";
            return Err(url.refuse(why));
        }
        (None, Some(_)) => {
            let why = "it has a password without a user; digest authentication needs both";
            return Err(url.refuse(why));
        }
    };
    let files = TlsFiles::take(url);
    let secure = files.given().is_some();
    if secure {
        connector = with_tls(url, connector, &files)?;
    }
    Ok(Own {
        connector,
        secure,
        private,
    })
}

fn root(url: &StoreUrl) -> Result<String> {
    let mut root = String::new();
    for part in url.path.split('/').filter(|part| !part.is_empty()) {
        if part == "." || part == ".." || part.chars().any(char::is_control) {
            return Err(url.refuse(format!(
                "the chroot has the part {part:?}, which ZooKeeper refuses as the name of a node; choose another chroot"
            )));
        }
        root += &format!("/{part}");
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(url.refuse("/zookeeper is the server's own node; choose another chroot"));
    }
    Ok(root)
}

#[cfg(not(feature = "tls"))]
fn with_tls(url: &StoreUrl, _connector: Connector, _files: &TlsFiles) -> Result<Connector> {
    Err(url.refuse_part(
        fencelock_core::ConfigPart::Build,
        "this build has no TLS; build with the feature tls",
    ))
}

#[cfg(feature = "tls")]
fn with_tls(url: &StoreUrl, connector: Connector, files: &TlsFiles) -> Result<Connector> {
    // rustls has one cryptography provider per process. An application that installed one keeps it.
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let texts = files.read(url)?;
    let refuse = |error: zookeeper_client::Error| url.refuse(error.to_string());
    let mut tls = zookeeper_client::TlsOptions::default();
    if let Some(ca) = texts.ca {
        let ca = String::from_utf8_lossy(&ca);
        tls = tls.with_pem_ca(&ca).map_err(refuse)?;
    }
    if let Some((cert, key)) = texts.identity {
        let [cert, key] = [&cert, &key].map(|text| String::from_utf8_lossy(text));
        tls = tls.with_pem_identity(&cert, &key).map_err(refuse)?;
    }
    Ok(connector.with_tls(tls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(url).unwrap().into())
    }

    #[test]
    fn servers_chroot_and_user() {
        let config =
            config("zookeeper://ann:s%3Acret@h1,h2:2182,[::1]:7/a/b/?claim-window=3s").unwrap();
        assert_eq!(config.servers, "h1:2181,h2:2182,[::1]:7");
        assert_eq!(config.root, "/a/b");
        assert!(config.private && !config.secure);
        assert_eq!(config.claim_window, Duration::from_secs(3));
        assert!(!config.store.contains("cret"));
    }

    #[test]
    fn unusable_urls_are_refused() {
        for (url, why) in [
            ("zookeeper://", "no host"),
            ("zookeeper://h:x", "not a port"),
            ("zookeeper://h:0", "not a port"),
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

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["h1", "[::1]:7"])
            .user("ann")
            .password("s:cret");
        let options = options.chroot("a/b").claim_window(Duration::from_secs(3));
        let options = options.response_timeout(Duration::from_millis(700));
        let url = "zookeeper://ann:s%3Acret@h1,[::1]:7/a/b?claim-window=3s&response-timeout=700ms";
        let shown = |config: Result<Config>| {
            let Config {
                servers,
                root,
                store,
                private,
                connector,
                response_timeout,
                claim_window,
                ..
            } = config.unwrap();
            format!(
                "{servers} {root} {store} {private} {connector:?} {response_timeout:?} {claim_window:?}"
            )
        };
        assert!(!format!("{options:?}").contains("cret"));
        assert_eq!(shown(Config::new(options)), shown(config(url)));
    }

    #[test]
    fn setters_are_refused_as_the_url_is() {
        let (one, none) = (|| Options::new(["h"]), [""; 0]);
        let own = || Options::from_connector(["h"], Client::connector());
        for (options, why) in [
            (Options::new(none), "no host"),
            (Options::new(["h:0"]), "not a port"),
            (one().chroot("/zookeeper"), "own"),
            (one().user("ann"), "password"),
            (one().claim_window(Duration::ZERO), "claim-window"),
            (one().tls_cert("/nowhere"), "tls"),
            (one().private_nodes(), "private-nodes"),
            (own().user("ann"), "user"),
            (own().tls_ca("/x"), "tls-ca"),
        ] {
            let error = Config::new(options).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(why), "{why}: {error}");
        }
    }
}
