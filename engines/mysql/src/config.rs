//! The options of a store, checked.

use std::sync::Arc;

use fencelock_core::{Result, StoreUrl};
use fencelock_sql::Settings;
use fencelock_sql::server::{Host, SecondServer, hosts};
use fencelock_sql::tls::{Mode, Tls};
use mysql_async::{Opts, OptsBuilder};

use super::options::{Options, STRATEGIES, Strategy};
use super::tls;

const DEFAULT_PORT: u16 = 3306;
/// The default prefix of the tables' names.
const TABLE: &str = "fencelock";
/// MySQL allows names of 64 bytes, and the tables' names have a suffix.
const LONGEST_TABLE: usize = 48;

/// How long the server keeps a connection that is silent outside a transaction, in seconds.
pub(crate) const WAIT_TIMEOUT: usize = 28_800;

/// A store's options, checked.
#[derive(Clone)]
pub(crate) struct Config {
    /// The URL without its password.
    pub(crate) store: String,
    pub(crate) hosts: Vec<Host>,
    pub(crate) table: String,
    pub(crate) strategy: Strategy,
    pub(crate) settings: Settings,
    pub(crate) tls: Tls,
    /// Nothing is written, and nothing is created.
    pub(crate) inspect_only: bool,
    pub(crate) second_server: Arc<SecondServer>,
    /// The driver's options, one per host.
    options: Vec<Opts>,
}

impl Config {
    pub(crate) fn new(options: Options) -> Result<Self> {
        let Options { mut url, own } = options;
        let (store, inspect_only) = (url.to_string(), url.inspect_only);
        let strategy = url.take_choice("strategy", &STRATEGIES)?;
        let settings = match strategy {
            Strategy::Lease => Settings::of_leases(&mut url)?,
            Strategy::GetLock | Strategy::ForUpdate => Settings::of_connections(&mut url)?,
        };
        let table = url.take("table").unwrap_or_else(|| TABLE.to_owned());
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if table.is_empty() || table.len() > LONGEST_TABLE || !table.chars().all(plain) {
            return Err(url.refuse(format!(
                "table={table} must be a prefix for the tables' names: at most {LONGEST_TABLE} letters, digits and _"
            )));
        }
        let hosts = hosts(&url, DEFAULT_PORT)?;
        if url.path.is_empty() || url.path.contains('/') {
            return Err(url.refuse(
                "it must name one database after the host, as in mysql://USER@HOST/DATABASE",
            ));
        }
        let (options, tls) = match own.is_empty() {
            true => connections(&mut url, &hosts)?,
            false => {
                url.without_user()?;
                let tls = match own.iter().all(|opts| opts.ssl_opts().is_some()) {
                    true => Mode::Require,
                    false => Mode::Off,
                };
                let options = own.into_iter();
                let options = options.map(|opts| silent(OptsBuilder::from_opts(opts)).into());
                (options.collect(), Tls::own(tls))
            }
        };
        url.finish()?;
        Ok(Self {
            store,
            hosts,
            table,
            strategy,
            settings,
            tls,
            inspect_only,
            second_server: Arc::default(),
            options,
        })
    }

    /// The driver's options for one of the hosts.
    pub(crate) fn options(&self, host: &Host) -> Option<&Opts> {
        let at = self.hosts.iter().position(|known| known == host)?;
        self.options.get(at)
    }
}

/// The driver's options, one per host, and the TLS of a URL.
fn connections(url: &mut StoreUrl, hosts: &[Host]) -> Result<(Vec<Opts>, Tls)> {
    let password = url.take_password()?;
    let options = OptsBuilder::default()
        .user(url.user.clone())
        .pass(password)
        .db_name(Some(url.path.clone()))
        .prefer_socket(false);
    let usual = ["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
    let tls = Tls::take(url, usual, hosts)?;
    let options = hosts.iter().map(|host| {
        let options = silent(options.clone()).ip_or_hostname(&host.name);
        tls::options(options.tcp_port(host.port), &tls, host)
    });
    Ok((options.collect(), tls))
}

/// Without the queries that the driver would send for each connection.
fn silent(options: OptsBuilder) -> OptsBuilder {
    options
        .tcp_nodelay(true)
        .max_allowed_packet(Some(16 * 1024 * 1024))
        .wait_timeout(Some(WAIT_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(text: &str) -> Result<Config> {
        Config::new(StoreUrl::parse(text)?.into())
    }

    /// The comparable parts of a configuration.
    fn shown(config: Result<Config>) -> String {
        let Config {
            store,
            hosts,
            table,
            strategy,
            settings,
            tls,
            options,
            ..
        } = config.unwrap();
        format!("{store} {hosts:?} {table} {strategy:?} {settings:?} {tls:?} {options:?}")
    }

    #[test]
    fn setters_say_what_the_url_says() {
        let options = Options::new(["localhost:7000", "[::1]"], "locks").user("me");
        let options = options
            .password("p@ss")
            .strategy(Strategy::GetLock)
            .table("t");
        let options = options
            .response_timeout(Duration::from_secs(1))
            .tls(Mode::Off);
        let options = options.max_connections(3);
        assert!(!format!("{options:?}").contains("p@ss"));
        let url = "mysql://me:p%40ss@localhost:7000,[::1]/locks?strategy=get-lock&table=t&response-timeout=1s&tls=off\
                   &max-connections=3";
        assert_eq!(shown(Config::new(options)), shown(read(url)));
    }

    #[test]
    fn says_what_is_wrong() {
        let one = || Options::new(["localhost"], "d");
        let opts = || Opts::from(OptsBuilder::default().db_name(Some("d")));
        for (wrong, word) in [
            (read("mysql://localhost"), "database"),
            (read("mysql://localhost/d?strategy=x"), "get-lock"),
            (Config::new(Options::new([""; 0], "d")), "host"),
            (Config::new(Options::new(["h:0"], "d")), "port"),
            (Config::new(Options::new(["h"], "")), "database"),
            (Config::new(one().table("a-b")), "table"),
            (Config::new(one().max_connections(1)), "at least 2"),
            (
                Config::new(one().response_timeout(Duration::ZERO)),
                "response-timeout",
            ),
            (Config::new(one().tls(Mode::Off).tls_ca("/x")), "tls"),
            (Config::new(Options::from_opts(opts()).user("me")), "user"),
            (
                Config::new(Options::from_opts(opts()).tls_ca("/x")),
                "tls-ca",
            ),
            (Config::new(Options::from_opts(Opts::default())), "database"),
            (
                Config::new(Options::from_opts(opts()).other_host(opts())),
                "twice",
            ),
        ] {
            let error = wrong.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}
