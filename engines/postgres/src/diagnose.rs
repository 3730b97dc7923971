//! Problems of a server as it is now, beyond the limits of its promises.

use std::time::Duration;

use fencelock_core::support::{Asked, ClockWatch};
use fencelock_core::{Finding, Purpose, Result};
use fencelock_sql::bound::CloseSignal;

use super::connection::{Hosts, Session};
use super::options::Strategy;
use super::tables::REVISION as OUR_REVISION;

const ASK: &str = "SELECT current_setting('transaction_isolation')";
/// Missing rights that would otherwise show only later.
const MISSING: &str = "\
    SELECT privilege || ' on ' || of FROM unnest($1::text[]) AS of, \
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege \
        WHERE to_regclass(of) IS NOT NULL AND NOT has_table_privilege(of, privilege) UNION ALL \
    SELECT privilege || ' on fencelock_store' FROM unnest(ARRAY['SELECT', 'UPDATE']) AS privilege \
        WHERE NOT has_table_privilege(to_regclass('fencelock_store'), privilege) UNION ALL \
    SELECT privilege || ' on fencelock_tokens' FROM unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS privilege \
        WHERE NOT has_sequence_privilege(to_regclass('fencelock_tokens'), privilege) UNION ALL \
    SELECT 'EXECUTE on ' || proname FROM pg_proc \
        WHERE proname LIKE 'fencelock\\_%' AND pg_function_is_visible(oid) AND NOT has_function_privilege(oid, 'EXECUTE')";
/// Whether this user may wake the waiters of others by a cancellation.
const CANCELS: &str = "SELECT has_function_privilege('pg_cancel_backend(integer)', 'EXECUTE')";
/// Tables that do not exist.
const ABSENT: &str = "SELECT of FROM unnest($1::text[]) AS of WHERE to_regclass(of) IS NULL";
/// Whether this user may create what is missing when it first takes a lock: it must own what exists.
const MAKES: &str = "\
    SELECT NOT pg_is_in_recovery() AND coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) \
        AND NOT EXISTS (SELECT FROM pg_proc WHERE proname LIKE 'fencelock\\_%' AND pg_function_is_visible(oid) \
            AND NOT pg_has_role(proowner, 'USAGE'))";
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

pub(super) async fn findings(hosts: &Hosts) -> Result<Vec<Finding>> {
    let mut session = hosts.connect(&CloseSignal::new(None), None).await?;
    let rows = session
        .query(hosts, "asking for its settings", ASK, &[])
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| hosts.internal("no answer to a SELECT"))?;
    let mut findings: Vec<Finding> = isolation(row.get(0)).into_iter().collect();
    findings.extend(hosts.config.tls.finding(&hosts.config.hosts));
    let tables: &[&str] = match hosts.config.strategy {
        Strategy::Lease => &["fencelock_locks", "fencelock_holders", "fencelock_waiters"],
        Strategy::Advisory => &["fencelock_bound"],
    };
    if session.recovering {
        findings.push(Finding::new(
            Purpose::Efficiency,
            "the server is a replica in recovery, so no lock can be taken there",
            "name the primary, alone or as well",
        ));
    }
    findings.extend(absent(hosts, &mut session, tables).await?);
    findings.extend(rights(hosts, &mut session, tables).await?);
    findings.extend(clock(hosts, &mut session).await?);
    Ok(findings)
}

/// Missing rights that would otherwise show only later.
async fn rights(hosts: &Hosts, session: &mut Session, tables: &[&str]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let missing = session
        .query(hosts, "asking for its rights", MISSING, &[&tables])
        .await?;
    for row in missing {
        let right: &str = row.get(0);
        findings.push(Finding::new(
            Purpose::Efficiency,
            format!("this user has no {right}, so waiting, renewing or releasing fails"),
            format!("GRANT {right} to this user"),
        ));
    }
    if hosts.config.strategy == Strategy::Lease {
        let rows = session
            .query(hosts, "asking for its rights", CANCELS, &[])
            .await?;
        if !rows.first().is_some_and(|row| row.get(0)) {
            findings.push(Finding::new(
                Purpose::Efficiency,
                "this user has no EXECUTE on pg_cancel_backend(integer), so with many clients each hand-off wakes all of them",
                "GRANT EXECUTE ON FUNCTION pg_cancel_backend(integer) to this user",
            ));
        }
    }
    Ok(findings)
}

/// Whether the server's clock is right and runs evenly.
async fn clock(hosts: &Hosts, session: &mut Session) -> Result<Vec<Finding>> {
    let mut watch = ClockWatch::new(hosts.to_string());
    for round in 0..ClockWatch::TIMES {
        if round > 0 {
            tokio::time::sleep(ClockWatch::PAUSE).await;
        }
        let asked = Asked::now();
        let rows = session
            .query(hosts, "asking for the time", NOW, &[])
            .await?;
        if let Some(row) = rows.first() {
            let micros = row.get::<_, i64>(0).unsigned_abs();
            watch.told(asked, Duration::from_micros(micros));
        }
    }
    Ok(watch.findings())
}

/// Missing tables, and functions that are missing or of an older version, unless this user's next claim creates them.
async fn absent(hosts: &Hosts, session: &mut Session, tables: &[&str]) -> Result<Option<Finding>> {
    let all = [tables, &["fencelock_store", "fencelock_tokens"]].concat();
    let rows = session
        .query(hosts, "asking for its tables", ABSENT, &[&all])
        .await?;
    let missing: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let what = match missing.is_empty() {
        false => format!("tables are missing: {}", missing.join(", ")),
        true if is_old(hosts, session).await? => {
            "functions are missing or of an older version".to_owned()
        }
        true => return Ok(None),
    };
    let rows = session
        .query(hosts, "asking whether it may create its tables", MAKES, &[])
        .await?;
    let makes = rows.first().is_some_and(|row| row.get(0));
    Ok((!makes).then(|| {
        Finding::new(
            Purpose::Efficiency,
            format!("{what}, and this user may not create them"),
            "have an administrator run the output of `fencelock schema postgres`",
        )
    }))
}

/// Whether functions are missing or of an older version.
async fn is_old(hosts: &Hosts, session: &mut Session) -> Result<bool> {
    const THERE: &str = "SELECT to_regproc('fencelock_revision') IS NOT NULL";
    const REVISION: &str = "SELECT fencelock_revision()";
    let action = "asking for its functions";
    let there = session.query(hosts, action, THERE, &[]).await?;
    if !there.first().is_some_and(|row| row.get(0)) {
        return Ok(true);
    }
    let rows = session.query(hosts, action, REVISION, &[]).await?;
    let revision = rows.first().map(|row| row.get::<_, i32>(0));
    Ok(revision.is_none_or(|revision| revision < i32::from(OUR_REVISION)))
}

/// A connection works at the level that it set, unless another client uses it as well.
fn isolation(level: &str) -> Option<Finding> {
    (level != "read committed").then(|| {
        Finding::new(
            Purpose::Correctness,
            format!(
                "a connection works at {level}, although fencelock has just set read committed: a pooler between this client and the server shares its connections or resets them"
            ),
            "connect to the server itself, or to a pool with pool_mode = session",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_isolation_is_reported() {
        assert!(isolation("read committed").is_none());
        assert!(isolation("repeatable read").is_some());
    }
}
