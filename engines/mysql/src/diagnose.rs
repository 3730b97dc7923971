//! Problems of a server as it is now, beyond the limits of its promises.

use std::collections::HashMap;
use std::time::Duration;

use fencelock_core::support::{Asked, ClockWatch};
use fencelock_core::{Error, Finding, Purpose, Result};
use mysql_async::{Conn, Row, from_row_opt};

use super::config::{Config, WAIT_TIMEOUT};
use super::connection::{Connected, connect, hang_up};
use super::ear::{Control, Ear, new_name};
use super::error::caller_error;
use super::options::Strategy;
use super::request::{NOW, Request};
use super::tables::Tables;

/// Semi-synchronous replication of MySQL 8.0.26 and later has new names.
const ASK: &str = "\
    SHOW VARIABLES WHERE Variable_name IN ('wait_timeout', 'tx_isolation', 'transaction_isolation', \
    'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', \
    'rpl_semi_sync_master_timeout', 'rpl_semi_sync_source_timeout')";
/// The connected replicas: as MariaDB counts them, and as far as this user may see their connections.
const REPLICAS: [&str; 2] = [
    "SHOW GLOBAL STATUS LIKE 'Slaves_connected'",
    "SELECT '', CAST(COUNT(*) AS CHAR) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'",
];
/// There is no such table.
const NO_TABLE: u16 = 1146;
/// With a shorter timeout the server may continue without its replicas, and a fail-over may lose grants.
const LONG: Duration = Duration::from_secs(3600);

pub(super) async fn findings(config: &Config, tables: &Tables) -> Result<Vec<Finding>> {
    let Connected { mut conn, info, .. } = connect(config).await?;
    let failed = |error| caller_error(&config.store, "asking for its settings", error);
    let mut request = Request::of(ASK);
    REPLICAS.into_iter().for_each(|ask| {
        request.push(ask);
    });
    let answers = request.run(&mut conn).await.map_err(failed)?;
    let pairs = answers[0].rows.iter().cloned();
    let variables: HashMap<String, String> =
        pairs.filter_map(|row| from_row_opt(row).ok()).collect();
    let count = |row: &Row| row.get::<String, _>(1)?.parse::<u64>().ok();
    let counted = answers[1..].iter().flat_map(|answer| &answer.rows);
    let replicas = counted.filter_map(count).max().unwrap_or(0);
    let mut findings = Vec::from_iter(of_session(&variables));
    findings.extend(config.tls.finding(&config.hosts));
    if !info.takes_writes() {
        findings.push(Finding::new(
            Purpose::Efficiency,
            "the server takes no writes (read_only), so no lock can be taken there",
            "name the server that takes writes, alone or as well",
        ));
    }
    if config.strategy == Strategy::Lease {
        findings.extend(of_replicas(replicas, &variables, info.how_to_persist()));
        findings.extend(of_ears(&mut conn, config, tables).await?);
    }
    let takes_writes = info.takes_writes();
    rights(&mut conn, config, tables, takes_writes, &mut findings).await?;
    let (host, port) = (
        conn.opts().ip_or_hostname().to_owned(),
        conn.opts().tcp_port(),
    );
    let mut watch = ClockWatch::new(format!("{host}:{port}"));
    for round in 0..ClockWatch::TIMES {
        if round > 0 {
            tokio::time::sleep(ClockWatch::PAUSE).await;
        }
        let asked = Asked::now();
        let time = Request::of(format!("SELECT {NOW}"));
        let answers = time.run(&mut conn).await.map_err(failed)?;
        if let Some(micros) = answers[0].rows.first().and_then(|row| row.get(0)) {
            watch.told(asked, Duration::from_micros(micros));
        }
    }
    findings.extend(watch.findings());
    hang_up(conn);
    Ok(findings)
}

/// Each connection sets these for itself, so other values come from a proxy.
fn of_session(variables: &HashMap<String, String>) -> Option<Finding> {
    let get = |name: &str| variables.get(name).map(String::as_str);
    let isolation = get("transaction_isolation").or(get("tx_isolation"));
    let other = match (isolation, get("wait_timeout")) {
        (Some(isolation), _) if isolation != "READ-COMMITTED" => {
            format!("works at {isolation}, not at READ COMMITTED")
        }
        (_, Some(seconds)) if seconds != WAIT_TIMEOUT.to_string() => {
            format!("ends when it is silent for {seconds} s")
        }
        _ => return None,
    };
    Some(Finding::new(
        Purpose::Correctness,
        format!(
            "a connection {other}, although fencelock has just set it otherwise: something between this client and the server shares its connections or resets them"
        ),
        "connect to the server itself, or have the proxy give each client a connection of its own",
    ))
}

/// Checks that the server waits for its replicas, so that a promoted one has all grants.
fn of_replicas(
    replicas: u64,
    variables: &HashMap<String, String>,
    how_to_persist: &str,
) -> Option<Finding> {
    let either = |what: &str| {
        ["master", "source"].into_iter().find_map(|word| {
            variables
                .get(&format!("rpl_semi_sync_{word}_{what}"))
                .map(String::as_str)
        })
    };
    if replicas == 0 {
        return None;
    }
    if either("enabled") != Some("ON") {
        return Some(Finding::new(
            Purpose::Correctness,
            "the server does not wait for its replica: promoted, a replica may have missed the last grants, and grant a \
             lock twice (with a higher token)",
            format!(
                "use semi-synchronous replication: rpl_semi_sync_master_enabled = ON (or source for master), {how_to_persist}"
            ),
        ));
    }
    let waits = either("timeout").and_then(|ms| ms.parse().ok());
    let waits = Duration::from_millis(waits.unwrap_or(0));
    (waits < LONG).then(|| {
        Finding::new(
            Purpose::Correctness,
            format!(
                "after {waits:?} without a replica's answer the server grants without it (rpl_semi_sync_..._timeout): \
                 promoted then, it may grant a lock twice (with a higher token)"
            ),
            format!(
                "set rpl_semi_sync_master_timeout (or source for master) to an hour or more, {how_to_persist}; or never promote a \
                 replica that lags behind"
            ),
        )
    })
}

/// Checks that waiters can be woken.
async fn of_ears(conn: &mut Conn, config: &Config, tables: &Tables) -> Result<Option<Finding>> {
    let polls = |why: String, change: &str| {
        let what = format!("waiters are not woken, and ask up to twice per second: {why}");
        Finding::new(Purpose::Efficiency, what, change)
    };
    let mut request = Request::default();
    for change in tables.ear_rights() {
        request.push(change);
    }
    match request.run(conn).await {
        Err(mysql_async::Error::Server(server)) => {
            let is_missing = server.code == NO_TABLE;
            if !(is_missing && may_create(conn, config).await?) {
                let change = "have an administrator run the output of `fencelock schema mysql`, and grant SELECT, INSERT, \
                              UPDATE and DELETE on that table";
                return Ok(Some(polls(server.message, change)));
            }
        }
        Err(error) => return Err(caller_error(&config.store, "trying its rights", error)),
        Ok(_) => {}
    }
    let name = new_name();
    let control = Control::new(config.clone(), name.clone());
    let opened = Ear::open(config, &name, &control).await;
    control.hang_up();
    Ok(match opened {
        Ok(ear) => {
            ear.hang_up();
            None
        }
        Err(error) => Some(polls(
            error.to_string(),
            "let this user have two more connections per client, use GET_LOCK, and end its own queries with KILL QUERY: on the \
             server itself, or through a proxy that gives each client connections of its own",
        )),
    })
}

/// The tables of a strategy, each with one of its columns and the rights that the engine needs.
fn used(tables: &Tables, strategy: Strategy) -> Vec<(&str, &'static str, &'static [&'static str])> {
    const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];
    match strategy {
        Strategy::Lease => vec![
            (&tables.locks, "name", ALL),
            (&tables.holders, "name", ALL),
            (&tables.waiters, "name", ALL),
            (&tables.draws, "id", &["SELECT", "UPDATE"]),
        ],
        Strategy::ForUpdate => vec![
            (&tables.names, "name", ALL),
            (&tables.bound, "name", ALL),
            (&tables.tokens, "id", ALL),
        ],
        Strategy::GetLock => vec![
            (&tables.bound, "name", ALL),
            (&tables.tokens, "id", ALL),
            (&tables.counter, "id", ALL),
        ],
    }
}

/// Missing rights that would otherwise show only later.
async fn rights(
    conn: &mut Conn,
    config: &Config,
    tables: &Tables,
    takes_writes: bool,
    findings: &mut Vec<Finding>,
) -> Result<()> {
    let mut missing = Vec::new();
    for (table, column, rights) in used(tables, config.strategy) {
        for right in rights {
            let statement = match *right {
                "SELECT" => format!("SELECT 1 FROM {table} WHERE 1 = 0"),
                "INSERT" => format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0"),
                "UPDATE" => format!("UPDATE {table} SET {column} = {column} WHERE 1 = 0"),
                _ => format!("DELETE FROM {table} WHERE 1 = 0"),
            };
            let Err(error) = Request::of(statement).run(conn).await else {
                continue;
            };
            match caller_error(&config.store, "trying its rights", error) {
                Error::Refused { .. } => findings.push(Finding::new(
                    Purpose::Efficiency,
                    format!("this user may not {right} on {table}, so waiting, renewing or releasing fails"),
                    format!("GRANT {right} ON {table} to this user"),
                )),
                error if error.is_retryable() => return Err(error),
                Error::Internal { why, .. } if why.contains("error 1146:") => {
                    missing.push(table.replace('`', ""));
                    break;
                }
                // A server that takes no writes.
                _ => {}
            }
        }
    }
    let makes = missing.is_empty() || takes_writes && may_create(conn, config).await?;
    if !makes {
        let missing = missing.join(", ");
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!("tables are missing: {missing}, and this user may not create them"),
            "have an administrator run the output of `fencelock schema mysql`",
        ));
    }
    Ok(())
}

/// Whether this user may create the tables when it first takes a lock. (Rights that come with a role are not seen.)
pub(super) async fn may_create(conn: &mut Conn, config: &Config) -> Result<bool> {
    const MAY: &str = "\
        SELECT 1 FROM (SELECT grantee, privilege_type, '%' AS place FROM information_schema.user_privileges \
        UNION ALL SELECT grantee, privilege_type, table_schema FROM information_schema.schema_privileges) AS given \
        WHERE privilege_type = 'CREATE' AND DATABASE() LIKE place \
        AND grantee = CONCAT('\\'', REPLACE(CURRENT_USER(), '@', '\\'@\\''), '\\'') LIMIT 1";
    let answers = Request::of(MAY).run(conn).await;
    let answers =
        answers.map_err(|error| caller_error(&config.store, "asking for its rights", error))?;
    Ok(!answers[0].rows.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn a_proxy_that_shares_connections_is_noticed() {
        let own = [
            ("wait_timeout", "28800"),
            ("tx_isolation", "READ-COMMITTED"),
        ];
        assert_eq!(of_session(&variables(&own)), None);
        assert_eq!(of_session(&variables(&[])), None);
        for other in [
            ("wait_timeout", "60"),
            ("transaction_isolation", "SERIALIZABLE"),
        ] {
            let found = of_session(&variables(&[own[0], own[1], other])).unwrap();
            assert!(found.what.contains("resets them"), "{found:?}");
        }
    }

    #[test]
    fn replicas_are_to_be_waited_for() {
        assert_eq!(of_replicas(0, &variables(&[]), ""), None);
        for (pairs, said) in [
            (&[][..], "does not wait for its replica"),
            (
                &[("rpl_semi_sync_master_enabled", "OFF")],
                "does not wait for its replica",
            ),
            (
                &[
                    ("rpl_semi_sync_source_enabled", "ON"),
                    ("rpl_semi_sync_source_timeout", "10000"),
                ],
                "after 10s without",
            ),
        ] {
            let found = of_replicas(1, &variables(pairs), "").unwrap();
            assert!(found.what.contains(said), "{found:?}");
        }
        let good = [
            ("rpl_semi_sync_master_enabled", "ON"),
            ("rpl_semi_sync_master_timeout", "4000000"),
        ];
        assert_eq!(of_replicas(1, &variables(&good), ""), None);
    }
}
