//! The options of a store's URL.

use std::sync::Arc;

use fencelock_core::{Result, StoreUrl};
use fencelock_sql::Settings;
use fencelock_sql::server::{Host, SecondServer, hosts};
use fencelock_sql::tls::Tls;
use mysql_async::{Opts, OptsBuilder};

use super::tls;

const DEFAULT_PORT: u16 = 3306;
/// The default prefix of the tables' names.
const TABLE: &str = "fencelock";
/// MySQL takes names of 64 bytes, and ours have a suffix.
const LONGEST_TABLE: usize = 48;

/// How long the server keeps a connection that is silent outside a transaction, in seconds.
pub(crate) const WAIT_TIMEOUT: usize = 28_800;

/// How locks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strategy {
    /// Rows that expire.
    Lease,
    /// A lock that the server keeps for a connection.
    GetLock,
    /// A row that a transaction keeps locked.
    ForUpdate,
}

/// A store's URL, read.
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
    pub(crate) fn from_url(mut url: StoreUrl) -> Result<Self> {
        let (store, inspect_only) = (url.to_string(), url.inspect_only);
        let password = url.take_password()?;
        let strategy = match url.take("strategy").as_deref() {
            None | Some("lease") => Strategy::Lease,
            Some("get-lock") => Strategy::GetLock,
            Some("for-update") => Strategy::ForUpdate,
            Some(other) => {
                return Err(url.refuse(format!(
                    "strategy={other} is unknown; known are lease, for-update and get-lock"
                )));
            }
        };
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
        let database = url.path.clone();
        if database.is_empty() || database.contains('/') {
            return Err(url.refuse(
                "it must name one database after the host, as in mysql://USER@HOST/DATABASE",
            ));
        }
        let options = OptsBuilder::default()
            .user(url.user.clone())
            .pass(password)
            .db_name(Some(database))
            .prefer_socket(false)
            .tcp_nodelay(true)
            // Without these two the driver sends a query for each.
            .max_allowed_packet(Some(16 * 1024 * 1024))
            .wait_timeout(Some(WAIT_TIMEOUT));
        let usual = ["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];
        let tls = Tls::take(&mut url, usual, &hosts)?;
        let options = hosts.iter().map(|host| {
            let options = options.clone().ip_or_hostname(&host.name);
            tls::options(options.tcp_port(host.port), &tls, host)
        });
        let options = options.collect();
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
