//! The options of a store's URL.

use std::time::Duration;

use fencelock_core::{Result, StoreUrl};
use fencelock_sql::Settings;
use fencelock_sql::server::{self, Host};
use fencelock_sql::tls::Tls;
use percent_encoding::percent_decode_str;

use super::tls::ssl_mode;

const DEFAULT_PORT: u16 = 5432;

/// How locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Rows with an expiry.
    Lease,
    /// An advisory lock of a session.
    Advisory,
}

/// A store's URL, read.
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
}

impl Config {
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let (store, inspect_only) = (url.to_string(), url.inspect_only);
        let password = url.take_password()?;
        let strategy = match url.take("strategy").as_deref() {
            None | Some("lease") => Strategy::Lease,
            Some("advisory") => Strategy::Advisory,
            Some("for-update") => {
                return Err(url.refuse(
                    "strategy=for-update is no longer offered: it kept a transaction open for each hold, which holds up vacuum, and \
                     promised less than strategy=advisory; use that",
                ));
            }
            Some(other) => {
                return Err(url.refuse(format!(
                    "strategy={other} is unknown; known are lease and advisory"
                )));
            }
        };
        let settings = match strategy {
            Strategy::Lease => Settings::of_leases(&mut url)?,
            Strategy::Advisory => Settings::of_connections(&mut url)?,
        };
        let Some(user) = url.user.clone() else {
            return Err(url.refuse("it names no user; write postgres://USER@HOST/DATABASE"));
        };
        let database = match url.path.is_empty() {
            true => user.clone(),
            false => url.path.clone(),
        };
        let mut hosts = server::hosts(&url, DEFAULT_PORT)?;
        for Host { name, .. } in &mut hosts {
            // The directory of a Unix socket is written as %2Frun%2Fpostgresql.
            *name = percent_decode_str(name).decode_utf8_lossy().into_owned();
        }
        let usual = ["sslmode", "sslrootcert", "sslcert", "sslkey"];
        let tls = Tls::take(&mut url, usual, &hosts)?;
        let mut options = Vec::new();
        for host in &hosts {
            let mut config = tokio_postgres::Config::new();
            config.user(&user).dbname(&database);
            config.host(&host.name).port(host.port);
            config.ssl_mode(ssl_mode(tls.mode(host)));
            config.application_name("fencelock");
            // So that a connection to a dead machine ends.
            config.keepalives_idle(Duration::from_secs(15));
            config.keepalives_interval(Duration::from_secs(5));
            config.keepalives_retries(3);
            if let Some(password) = &password {
                config.password(password);
            }
            options.push(config);
        }
        url.finish()?;
        Ok(Self {
            store,
            strategy,
            settings,
            inspect_only,
            hosts,
            options,
            tls,
        })
    }

    /// A host's name and port.
    pub(crate) fn address(&self, at: usize) -> String {
        let host = self.options[at].get_hosts().first();
        let port = self.options[at].get_ports().first();
        let port = port.copied().unwrap_or(DEFAULT_PORT);
        match host {
            Some(tokio_postgres::config::Host::Tcp(name)) => format!("{name}:{port}"),
            Some(other) => format!("{other:?}, port {port}"),
            None => format!("port {port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::from_url(StoreUrl::parse(text)?)
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
        assert_eq!(
            read("postgres://me@%2Frun%2Fx").unwrap().options[0].get_dbname(),
            Some("me")
        );
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
}
