//! The options of a store, checked.

use std::net::SocketAddr;
use std::time::Duration;

use fencelock_core::{Result, StoreUrl};
use fencelock_sql::Settings;
use fencelock_sql::server::{self, Host};
use fencelock_sql::tls::{Mode, Tls};
use percent_encoding::percent_decode_str;
use tokio_postgres::config::{self, SslMode};

use super::options::{DEFAULT_PORT, Options, Own, STRATEGIES, Strategy};
use super::tls::{Connector, ssl_mode};

/// A store's options, checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) strategy: Strategy,
    pub(crate) settings: Settings,
    /// Nothing is written, and nothing is created.
    pub(crate) inspect_only: bool,
    pub(crate) hosts: Vec<Host>,
    /// The driver's options, one per host.
    pub(crate) options: Vec<tokio_postgres::Config>,
    pub(crate) tls: Tls,
    /// The connector of own configurations.
    pub(crate) connector: Option<Connector>,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let (store, inspect_only) = (url.to_string(), url.inspect_only);
        if let Some("for-update") = url.clone().take("strategy").as_deref() {
            return Err(url.refuse(
                "strategy=for-update is no longer offered: it kept a transaction open for each hold, which holds up vacuum, and \
                 promised less than strategy=advisory; use that",
            ));
        }
        let strategy = url.take_choice("strategy", &STRATEGIES)?;
        let settings = match strategy {
            Strategy::Lease => Settings::of_leases(&mut url)?,
            Strategy::Advisory => Settings::of_connections(&mut url)?,
        };
        let mut hosts = server::hosts(&url, DEFAULT_PORT)?;
        for Host { name, .. } in &mut hosts {
            // The directory of a Unix socket is written as %2Frun%2Fpostgresql.
            *name = percent_decode_str(name).decode_utf8_lossy().into_owned();
        }
        let (options, tls) = match own.configs.is_empty() {
            true => connections(&mut url, &hosts)?,
            false => own_connections(&url, &own)?,
        };
        url.finish()?;
        Ok(Self {
            store,
            strategy,
            settings,
            inspect_only,
            hosts,
            options,
            tls,
            connector: own.connector,
        })
    }

    /// A host's name and port.
    pub(crate) fn address(&self, at: usize) -> String {
        let options = &self.options[at];
        let port = options.get_ports().first();
        let port = port.copied().unwrap_or(DEFAULT_PORT);
        match (options.get_hosts().first(), options.get_hostaddrs().first()) {
            (Some(config::Host::Tcp(name)), _) => format!("{name}:{port}"),
            #[cfg(unix)]
            (Some(config::Host::Unix(directory)), _) => {
                format!("{}/.s.PGSQL.{port}", directory.display())
            }
            (None, Some(address)) => SocketAddr::new(*address, port).to_string(),
            (None, None) => format!("port {port}"),
        }
    }
}

/// The driver's options, one per host, and the TLS of a URL.
fn connections(url: &mut StoreUrl, hosts: &[Host]) -> Result<(Vec<tokio_postgres::Config>, Tls)> {
    let password = url.take_password()?;
    let Some(user) = url.user.clone() else {
        return Err(url.refuse("it names no user; write postgres://USER@HOST/DATABASE"));
    };
    let database = match url.path.is_empty() {
        true => user.clone(),
        false => url.path.clone(),
    };
    let usual = ["sslmode", "sslrootcert", "sslcert", "sslkey"];
    let tls = Tls::take(url, usual, hosts)?;
    let options = hosts.iter().map(|host| {
        let mut config = tokio_postgres::Config::new();
        config.user(&user).dbname(&database);
        config.host(&host.name).port(host.port);
        config.ssl_mode(ssl_mode(tls.mode(host)));
        config.application_name("fencelock");
        // So that a connection to a machine that is down ends.
        config.keepalives_idle(Duration::from_secs(15));
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        if let Some(password) = &password {
            config.password(password);
        }
        config
    });
    Ok((options.collect(), tls))
}

/// A program's own configurations, and their TLS.
fn own_connections(url: &StoreUrl, own: &Own) -> Result<(Vec<tokio_postgres::Config>, Tls)> {
    url.without_user()?;
    let mut configs = own.configs.clone();
    let mut mode = Mode::Require;
    for config in &mut configs {
        if config.get_hosts().len() > 1 {
            return Err(url.refuse(
                "a configuration names several hosts; give one configuration for each (other_host)",
            ));
        }
        match (config.get_ssl_mode(), &own.connector) {
            (SslMode::Disable, _) => mode = Mode::Off,
            (SslMode::Prefer, None) => {
                config.ssl_mode(SslMode::Disable);
                mode = Mode::Off;
            }
            (SslMode::Prefer, Some(_)) if mode == Mode::Require => mode = Mode::Prefer,
            (_, Some(_)) => {}
            (_, None) => {
                return Err(url.refuse("it requires TLS; give what makes it (tls_connector)"));
            }
        }
    }
    Ok((configs, Tls::own(mode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(text)?.into())
    }

    #[test]
    fn takes_what_a_url_says() {
        let config =
            read("postgres://me:secret@localhost:7000,[::1]/d?strategy=advisory&max-connections=3")
                .unwrap();
        assert_eq!(config.strategy, Strategy::Advisory);
        assert_eq!(config.settings.connections.get(), 3);
        assert_eq!(config.options[0].get_ports(), [7000]);
        assert_eq!(config.options[1].get_ports(), [DEFAULT_PORT]);
        assert_eq!(config.options[1].get_dbname(), Some("d"));
        assert_eq!(config.options[0].get_password(), Some(&b"secret"[..]));
        assert!(!format!("{config:?}").contains("secret"));
        let socket = read("postgres://me@%2Frun%2Fx").unwrap();
        assert_eq!(socket.options[0].get_dbname(), Some("me"));
        assert_eq!(socket.address(0), "/run/x/.s.PGSQL.5432");
        assert_eq!(config.address(0), "localhost:7000");
    }

    #[test]
    fn says_what_is_wrong_with_a_url() {
        for (text, word) in [
            ("postgres://h/d", "user"),
            ("postgres://me@/d", "host"),
            ("postgres://me@h:0/d", "port"),
            ("postgres://me@localhost/d?strategy=get-lock", "advisory"),
            (
                "postgres://me@localhost/d?strategy=for-update",
                "strategy=advisory",
            ),
            ("postgres://me@localhost/d?max-connections=1", "at least 2"),
            (
                "postgres://me@localhost/d?strategy=advisory&max-connections=0",
                "at least 1",
            ),
            (
                "postgres://me@localhost/d?response-timeout=0",
                "response-timeout",
            ),
            ("postgres://me@localhost/d?poll=1", "poll"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["localhost:7000", "/run/x"])
            .user("me")
            .password("p@ss");
        let options = options
            .database("locks")
            .strategy(Strategy::Advisory)
            .max_connections(3);
        let options = options
            .response_timeout(Duration::from_secs(1))
            .tls(Mode::Off);
        assert!(!format!("{options:?}").contains("p@ss"));
        let url = "postgres://me:p%40ss@localhost:7000,%2Frun%2Fx/locks?strategy=advisory&max-connections=3\
                   &response-timeout=1s&tls=off";
        let [by_setters, by_url] =
            [Config::new(options), read(url)].map(|config| format!("{:?}", config.unwrap()));
        assert_eq!(by_setters, by_url);
    }

    #[test]
    fn setters_are_refused_as_the_url_is() {
        let one = || Options::new(["localhost"]).user("me");
        let own = |text: &str| Options::from_config(text.parse().unwrap());
        for (options, word) in [
            (Options::new(["h"]), "user"),
            (Options::new([""]).user("me"), "host"),
            (Options::new(["h:0"]).user("me"), "port"),
            (one().max_connections(1), "at least 2"),
            (one().response_timeout(Duration::ZERO), "response-timeout"),
            (one().tls(Mode::Off).tls_ca("/x"), "tls"),
            (own("host=h").user("me"), "user"),
            (own("host=h").password("secret"), "password"),
            (own("host=h").tls(Mode::Off), "tls"),
            (own("host=a,b"), "several"),
            (own("host=h sslmode=require"), "tls_connector"),
            (own("user=me"), "host"),
        ] {
            let error = Config::new(options).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
