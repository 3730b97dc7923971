//! Finds the server that takes writes, and prepares a connection to it.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::{Durability, Error, Finding, Purpose, Result};
use fencelock_sql::server::{Host, two_take_writes};
use futures_util::future::join_all;
use mysql_async::Conn;

use super::config::{Config, WAIT_TIMEOUT};
use super::tls;
use super::wire::{Answer, Request, told};

/// The settings of a server that matter here.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    variables: HashMap<String, String>,
}

/// A connection that is ready; what is known of the server; and how the server knows the connection: by its id, and the
/// address and port that it comes from.
pub(crate) type Found = (Conn, Facts, String);

/// A connection to the first host that takes writes; to look only, to any host if there is none.
pub(crate) async fn connect(config: &Config) -> Result<Found> {
    let lookout = &config.lookout;
    if config.hosts.len() == 1 || config.inspect_only {
        return Ok(first_of(config).await?.0);
    }
    // Both at once: a host that is silent is waited for once.
    let (first, alone) = match lookout.is_due() {
        true => tokio::join!(first_of(config), rule_out_second(config)),
        false => (first_of(config).await, Ok(false)),
    };
    let ((found, at), looked) = (first?, alone?);
    if lookout.is_another(at) && !looked {
        rule_out_second(config).await?;
    }
    if lookout.is_another(at) || looked {
        lookout.looked(at);
    }
    Ok(found)
}

/// How long one host may take to answer.
fn share(config: &Config) -> Duration {
    config.settings.response_timeout / config.hosts.len().try_into().unwrap_or(1)
}

/// The first host that takes writes.
async fn first_of(config: &Config) -> Result<(Found, usize)> {
    let (mut failure, mut replica) = (None, None);
    for at in 0..config.hosts.len() {
        let error = match connect_in_time(config, at).await {
            Ok(found) if found.1.takes_writes() => return Ok((found, at)),
            Ok(found) => {
                replica.get_or_insert((found, at));
                let why =
                    "the server is read-only: a replica, or a server that is being switched over";
                Error::unavailable(&config.store, connect_action(config, at), why)
            }
            Err(error) => error,
        };
        // What has to be changed by somebody tells more than a server that is down.
        if failure.as_ref().is_none_or(Error::is_retryable) {
            failure = Some(error);
        }
    }
    match replica {
        Some(replica) if config.inspect_only => Ok(replica),
        _ => Err(failure.unwrap_or_else(|| Error::config(&config.store, "it names no host"))),
    }
}

fn connect_action(config: &Config, at: usize) -> String {
    let host = &config.hosts[at];
    format!("connect to {}:{}", host.name, host.port)
}

async fn connect_in_time(config: &Config, at: usize) -> Result<Found> {
    let (limit, action) = (share(config), connect_action(config, at));
    let connect = connect_to(config, &config.hosts[at], &action);
    let connected = tokio::time::timeout(limit, connect).await;
    connected.unwrap_or_else(|_| {
        // Such a server speaks first.
        let why = format!("no answer within {limit:?}; is it a MySQL or MariaDB server?");
        Err(Error::unavailable(&config.store, action, why))
    })
}

/// Refuses a second server that takes writes, unless both belong to one cluster, which certifies what they write. A host that
/// does not answer is away. True: all were looked at.
async fn rule_out_second(config: &Config) -> Result<bool> {
    let hosts = 0..config.hosts.len();
    let all = join_all(hosts.map(|at| connect_in_time(config, at))).await;
    let answered = all.into_iter().enumerate();
    let writable = answered.filter_map(|(at, found)| Some((at, found.ok()?)));
    let mut writable: Vec<(usize, Found)> = writable
        .filter(|(_, (_, facts, _))| facts.takes_writes())
        .collect();
    let second = find_second(&mut writable).await;
    for (_, (conn, ..)) in writable {
        super::hang_up(conn);
    }
    let Some((one, other)) = second else {
        return Ok(true);
    };
    let host = |at: usize| format!("{}:{}", config.hosts[at].name, config.hosts[at].port);
    let way_out = "Set read_only = 1 on the one that is the other's replica, or name one of them";
    Err(two_take_writes(
        &config.store,
        &host(one),
        &host(other),
        way_out,
    ))
}

/// Two hosts that are two servers. A lock of the server's own tells them from two names of one server: all of its connections
/// know it.
async fn find_second(writable: &mut [(usize, Found)]) -> Option<(usize, usize)> {
    let ((first, (one, facts, _)), others) = writable.split_first_mut()?;
    let key = format!("fencelock-same-{:032x}", fastrand::u128(..));
    let lock = Request::of(format!("SELECT GET_LOCK('{key}', 0)"));
    let had = |answers: Vec<Answer>| answers[0].rows.first()?.get::<Option<u64>, _>(0)?;
    if lock.run(one).await.ok().and_then(had) != Some(1) {
        return None;
    }
    for (at, (other, of_other, _)) in others {
        let had = lock.run(other).await.ok().and_then(had);
        if had == Some(1) && !(facts.is_of_cluster() && of_other.is_of_cluster()) {
            return Some((*first, *at));
        }
    }
    None
}

async fn connect_to(config: &Config, host: &Host, at: &str) -> Result<Found> {
    let told = |error| told(&config.store, at, error);
    let mut conn = tls::connect(config, host, at).await?;
    let mut request = Request::default();
    request.push("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    // Less than a call waits for its answer, so that what was in the way can be tried again.
    let patience = (config.settings.response_timeout / 2).as_secs().max(1);
    request.push(format!(
        "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES', innodb_lock_wait_timeout = {patience}, \
         wait_timeout = {WAIT_TIMEOUT}, net_write_timeout = 60"
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

    pub(crate) fn takes_writes(&self) -> bool {
        self.get("read_only") == "OFF" && self.get("innodb_read_only") != "ON"
    }

    /// Whether several servers take writes by design, and what two of them write at once is refused to one.
    fn is_of_cluster(&self) -> bool {
        self.get("wsrep_on") == "ON" || self.get("group_replication_single_primary_mode") == "OFF"
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

    /// How a setting outlives a restart of the server, which SET GLOBAL does not.
    pub(crate) fn to_last(&self) -> &'static str {
        match self.is_mariadb() {
            true => "in the server's my.cnf, and with SET GLOBAL until it is restarted",
            false => "with SET PERSIST, or in the server's my.cnf",
        }
    }

    /// What those settings may cost.
    pub(crate) fn limits(&self) -> Vec<Finding> {
        let mut limits = Vec::new();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        if flush != "1" {
            let when = match flush {
                "0" => "was killed or lost power",
                _ => "lost power",
            };
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: format!(
                    "a server that {when} may have forgotten the grants of its last second (innodb_flush_log_at_trx_commit \
                     is {flush})"
                ),
                change: format!("set innodb_flush_log_at_trx_commit to 1, {}", self.to_last()),
            });
        }
        if self.get("log_bin") == "ON" && self.get("sync_binlog") != "1" {
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: format!(
                    "after a loss of power the binary log may lack the last grants (sync_binlog is {}), and replicas with \
                     it",
                    self.get("sync_binlog")
                ),
                change: format!("set sync_binlog to 1, {}", self.to_last()),
            });
        }
        if self.get("wsrep_on") == "ON" {
            limits.push(Finding {
                purpose: Purpose::Correctness,
                what: "the server is one of a Galera cluster: a grant counts on all of them once it is certified, and what \
                       two servers write at once is refused to one of them only then"
                    .into(),
                change: format!(
                    "send all clients of the locks to the same server, and set wsrep_sync_wait to 1, {}",
                    self.to_last()
                ),
            });
        }
        limits
    }
}
