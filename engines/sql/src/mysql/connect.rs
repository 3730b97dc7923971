//! Finds the server that takes writes, and prepares a connection to it.

use std::collections::HashMap;

use fencelock_core::{Durability, Error, Limit, Result};
use mysql_async::Conn;

use super::config::Config;
use super::tls;
use super::wire::{Request, told};
use crate::server::Host;

/// The settings of a server that matter here.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    variables: HashMap<String, String>,
}

/// A connection that is ready, to the first host that takes writes; what is known of the server; and how the server
/// knows the connection: by its id, and the address and port that it comes from.
pub(crate) async fn connect(config: &Config) -> Result<(Conn, Facts, String)> {
    let mut failure = None;
    let limit = config.settings.response_timeout / config.hosts.len().try_into().unwrap_or(1);
    for host in &config.hosts {
        let at = format!("connect to {}:{}", host.name, host.port);
        let connected = tokio::time::timeout(limit, connect_to(config, host, &at)).await;
        let error = match connected {
            Ok(Ok(found)) if found.1.takes_writes() => return Ok(found),
            Ok(Ok(_)) => Error::unavailable(
                &config.store,
                &at,
                "the server is read-only: a replica, or a server that is being switched over",
            ),
            Ok(Err(error)) => error,
            Err(_) => Error::unavailable(&config.store, at, format!("no answer within {limit:?}")),
        };
        // What has to be changed by somebody tells more than a server that is down.
        if failure.as_ref().is_none_or(Error::is_transient) {
            failure = Some(error);
        }
    }
    Err(failure.unwrap_or_else(|| Error::config(&config.store, "it names no host")))
}

async fn connect_to(config: &Config, host: &Host, at: &str) -> Result<(Conn, Facts, String)> {
    let told = |error| told(&config.store, at, error);
    let mut conn = tls::connect(config, host, at).await?;
    let mut request = Request::default();
    request.push("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    // Less than a call waits for its answer, so that what was in the way can be tried again.
    let patience = (config.settings.response_timeout / 2).as_secs().max(1);
    request.push(format!(
        "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = {patience}, \
         wait_timeout = 28800, net_write_timeout = 60"
    ));
    let shown = request.push(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', 'innodb_read_only', \
         'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on', \
         'group_replication_single_primary_mode')",
    );
    let seen = request.push(
        "SELECT CONCAT(id, ' ', host) FROM information_schema.processlist WHERE id = CONNECTION_ID()",
    );
    let answers = request.run(&mut conn).await.map_err(told)?;
    let pairs = answers[shown].rows.iter().cloned();
    let variables = pairs.map(mysql_async::from_row::<(String, String)>);
    let facts = Facts {
        variables: variables.collect(),
    };
    facts.check(&config.store)?;
    let trace = answers[seen].rows.first().and_then(|row| row.get(0));
    Ok((conn, facts, trace.unwrap_or_default()))
}

impl Facts {
    fn get(&self, variable: &str) -> &str {
        self.variables.get(variable).map_or("", String::as_str)
    }

    fn takes_writes(&self) -> bool {
        self.get("read_only") == "OFF" && self.get("innodb_read_only") != "ON"
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.get("version").contains("MariaDB")
    }

    /// Whether it prepares any statement, compound ones among them.
    pub(crate) fn prepares_compounds(&self) -> bool {
        self.is_mariadb() && self.version().1 >= (10, 6, 2)
    }

    /// The server's version; MariaDB may put 5.5.5- before its own, for the sake of old replicas.
    fn version(&self) -> (&str, (u32, u32, u32)) {
        let version = self.get("version");
        let version = version.strip_prefix("5.5.5-").unwrap_or(version);
        let parts = version.split(|c: char| !c.is_ascii_digit());
        let mut parts = parts.map(|part| part.parse::<u32>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (version, (next(), next(), next()))
    }

    /// Refuses servers on which a lock that hangs on a connection would be none, or of whom it asks too much.
    pub(crate) fn check_bound(&self, store: &str, strategy: &str) -> Result<()> {
        let refuse = |why: String| Err(Error::config(store, why));
        if self.get("wsrep_on") == "ON" {
            return refuse(format!(
                "the server is a node of a Galera cluster. strategy={strategy} locks on one node, and another node would \
                 grant the same lock at the same time; use strategy=lease"
            ));
        }
        if self.get("group_replication_single_primary_mode") == "OFF" {
            return refuse(format!(
                "the server's group replication has several primaries. strategy={strategy} locks on one of them, and \
                 another would grant the same lock at the same time; use strategy=lease"
            ));
        }
        let (version, found) = self.version();
        let least = match (self.is_mariadb(), strategy) {
            (true, "for-update") => (10, 6, 0),
            (true, _) => (10, 3, 0),
            (false, _) => (8, 0, 1),
        };
        if found < least {
            let (major, minor, _) = least;
            return refuse(format!(
                "the server is {version}, and strategy={strategy} needs {major}.{minor} or later; use strategy=lease"
            ));
        }
        Ok(())
    }

    /// Refuses servers whose AUTO_INCREMENT begins anew when they are restarted with an empty table.
    fn check(&self, store: &str) -> Result<()> {
        let (version, found) = self.version();
        let least = match self.is_mariadb() {
            true => (10, 2, 4),
            false => (8, 0, 0),
        };
        if found >= least {
            return Ok(());
        }
        Err(Error::config(
            store,
            format!(
                "the server is {version}, which forgets its counters when it is restarted, and tokens would go back; use \
                 MySQL 8.0 or MariaDB 10.2.4 or later"
            ),
        ))
    }

    /// What a server with these settings remembers.
    pub(crate) fn durability(&self) -> Durability {
        let binlog = self.get("log_bin") == "ON" && self.get("sync_binlog") != "1";
        match self.get("innodb_flush_log_at_trx_commit") {
            "0" => Durability::Volatile,
            "1" if !binlog => Durability::Durable,
            _ => Durability::Process,
        }
    }

    /// What those settings may cost.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let mut limits = Vec::new();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        if flush != "1" {
            let when = match flush {
                "0" => "was killed or lost power",
                _ => "lost power",
            };
            limits.push(Limit {
                what: format!(
                    "a server that {when} may have forgotten the grants of its last second (innodb_flush_log_at_trx_commit \
                     is {flush})"
                ),
                change: "set innodb_flush_log_at_trx_commit to 1".into(),
            });
        }
        if self.get("log_bin") == "ON" && self.get("sync_binlog") != "1" {
            limits.push(Limit {
                what: format!(
                    "after a loss of power the binary log may lack the last grants (sync_binlog is {}), and replicas with \
                     it",
                    self.get("sync_binlog")
                ),
                change: "set sync_binlog to 1".into(),
            });
        }
        if self.get("wsrep_on") == "ON" {
            limits.push(Limit {
                what: "the server is one of a Galera cluster: a grant counts on all of them once it is certified, and what \
                       two servers write at once is refused to one of them only then"
                    .into(),
                change: "send all clients of the locks to the same server, and set wsrep_sync_wait to 1".into(),
            });
        }
        limits
    }
}
