use std::collections::HashMap;

use fencelock_core::{ConfigPart, Durability, Error, Finding, Result};

/// The settings of a server that matter here.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    variables: HashMap<String, String>,
}

/// Shows these settings.
pub(crate) const ASK: &str = "\
    SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'read_only', 'innodb_read_only', \
    'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on', 'group_replication_single_primary_mode')";

impl ServerInfo {
    pub(crate) const fn new(variables: HashMap<String, String>) -> Self {
        Self { variables }
    }

    fn get(&self, variable: &str) -> &str {
        self.variables.get(variable).map_or("", String::as_str)
    }

    pub(crate) fn takes_writes(&self) -> bool {
        self.get("read_only") == "OFF" && self.get("innodb_read_only") != "ON"
    }

    /// Whether several servers take writes by design, and conflicting writes to two of them are refused.
    pub(crate) fn is_cluster(&self) -> bool {
        self.get("wsrep_on") == "ON" || self.get("group_replication_single_primary_mode") == "OFF"
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.get("version").contains("MariaDB")
    }

    /// Whether the server prepares compound statements.
    pub(crate) fn prepares_compounds(&self) -> bool {
        self.is_mariadb() && self.version().1 >= (10, 6, 2)
    }

    /// The server's version. MariaDB may put 5.5.5- before its own, for old replicas.
    fn version(&self) -> (&str, (u32, u32, u32)) {
        let version = self.get("version");
        let version = version.strip_prefix("5.5.5-").unwrap_or(version);
        let parts = version.split(|c: char| !c.is_ascii_digit());
        let mut parts = parts.map(|part| part.parse::<u32>().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        (version, (next(), next(), next()))
    }

    /// Refuses servers that cannot keep a connection-bound lock, or on which such a lock would not exclude others.
    pub(crate) fn check_bound(&self, store: &str, strategy: &str) -> Result<()> {
        let refuse = |why: String| Err(Error::config(store, ConfigPart::Server, why));
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

    /// Refuses servers whose AUTO_INCREMENT starts over when they are restarted with an empty table.
    pub(crate) fn check(&self, store: &str) -> Result<()> {
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
            ConfigPart::Server,
            format!(
                "the server is {version}, which forgets its counters in a restart, so that tokens would go back; use \
                 MySQL 8.0 or MariaDB 10.2.4 or later"
            ),
        ))
    }

    /// What a server with these settings remembers after a crash.
    pub(crate) fn durability(&self) -> Durability {
        let binlog = self.get("log_bin") == "ON" && self.get("sync_binlog") != "1";
        match self.get("innodb_flush_log_at_trx_commit") {
            "0" => Durability::Volatile,
            "1" if !binlog => Durability::Durable,
            _ => Durability::Process,
        }
    }

    /// How to make a setting that survives a restart of the server, which SET GLOBAL does not.
    pub(crate) fn how_to_persist(&self) -> &'static str {
        match self.is_mariadb() {
            true => "in the server's my.cnf, and with SET GLOBAL until the next restart",
            false => "with SET PERSIST, or in the server's my.cnf",
        }
    }

    /// The limits that follow from these settings.
    pub(crate) fn limits(&self) -> Vec<Finding> {
        let mut limits = Vec::new();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        if flush != "1" {
            let when = match flush {
                "0" => "was killed or lost power",
                _ => "lost power",
            };
            let what = format!(
                "a server that {when} may have forgotten the grants of its last second (innodb_flush_log_at_trx_commit \
                     is {flush})"
            );
            let change = format!(
                "set innodb_flush_log_at_trx_commit to 1, {}",
                self.how_to_persist()
            );
            limits.push(Finding::against_correctness(what, change));
        }
        if self.get("log_bin") == "ON" && self.get("sync_binlog") != "1" {
            let what = format!(
                "after a loss of power the binary log may lack the last grants (sync_binlog is {}), and replicas with \
                     it",
                self.get("sync_binlog")
            );
            let change = format!("set sync_binlog to 1, {}", self.how_to_persist());
            limits.push(Finding::against_correctness(what, change));
        }
        if self.get("wsrep_on") == "ON" {
            let what = "the server is a node of a Galera cluster: a grant counts on all nodes once it is certified, and the cluster refuses one of two conflicting writes only then";
            let change = format!(
                "send all clients of the locks to the same server, and set wsrep_sync_wait to 1, {}",
                self.how_to_persist()
            );
            limits.push(Finding::against_correctness(what, change));
        }
        limits
    }
}
