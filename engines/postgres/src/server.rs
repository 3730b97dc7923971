//! The settings of the server, and the limits that follow from them.

use fencelock_core::{Finding, Result};
use tokio_postgres::Row;

use super::connection::{Hosts, Session};
use super::options::Strategy;

const ASK: &str = "\
    SELECT current_setting('fsync'), current_setting('full_page_writes'), \
    EXISTS (SELECT 1 FROM pg_stat_replication), \
    current_setting('synchronous_standby_names') <> '', current_setting('synchronous_commit')";

/// The limits that its settings put on the promises.
pub(super) async fn limits(
    hosts: &Hosts,
    session: &mut Session,
    strategy: Strategy,
) -> Result<Vec<Finding>> {
    let rows = session
        .query(hosts, "asking for its settings", ASK, &[])
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| hosts.internal("no answer to a SELECT"))?;
    let several = hosts.config.hosts.len() > 1;
    if strategy == Strategy::Lease {
        let lost = after_a_crash(row).chain(of_standbys(row));
        return Ok(lost.chain(of_replicas(row, several)).collect());
    }
    let unknown = several.then(|| {
        limit(
            "after a switch-over the new host does not know who held: a holder that is still cut off from it trusts its grant until its ttl is over",
            "use the default strategy, lease, with synchronous_standby_names, or one host",
        )
    });
    Ok(unknown.into_iter().collect())
}

fn limit(what: impl Into<String>, change: impl Into<String>) -> Finding {
    Finding::against_correctness(what.into(), change.into())
}

/// Grants that a crash of the server loses.
fn after_a_crash(row: &Row) -> impl Iterator<Item = Finding> {
    let settings = [(0, "fsync"), (1, "full_page_writes")];
    let off = settings
        .into_iter()
        .filter(|(at, _)| row.get::<_, &str>(*at) == "off");
    off.map(|(_, name)| {
        limit(
            format!(
                "{name} is off: after a loss of power the server may have forgotten who holds, and grant a lock twice"
            ),
            format!(
                "set {name} = on: ALTER SYSTEM, then reload, which lasts (an argument on the server's command line would win)"
            ),
        )
    })
}

/// Grants that a standby loses, although the server waits for standbys. With names it does so, whether or not one streams at
/// the moment. Each connection corrects `off`.
fn of_standbys(row: &Row) -> Option<Finding> {
    let (names, commit): (bool, &str) = (row.get(3), row.get(4));
    let what = match commit {
        "local" if names => {
            "synchronous_commit is local: the server does not wait for its standbys, and a promoted one may have missed who \
             holds, and grant a lock twice (its tokens do not go back)"
        }
        "remote_write" if names => {
            "synchronous_commit is remote_write: a promoted standby whose machine went down as well may have forgotten who \
             holds, and grant a lock twice (its tokens do not go back)"
        }
        _ => return None,
    };
    let change = "ALTER ROLE this user SET synchronous_commit = on, which lasts";
    Some(limit(what, change))
}

/// Grants that a replica loses, for which the server does not wait. If it does not stream at the moment, its host in the URL
/// shows that there is one.
fn of_replicas(row: &Row, several: bool) -> Option<Finding> {
    let names: bool = row.get(3);
    let follows = match row.get(2) {
        true => Some("a replica streams"),
        false => several.then_some("another host follows"),
    };
    let follows = follows.filter(|_| !names)?;
    Some(limit(
        format!(
            "{follows}, and the server does not wait for it: promoted, it may have missed who holds, and grant a lock twice (its tokens do not go back)"
        ),
        "set synchronous_standby_names: ALTER SYSTEM, then reload, which lasts (an argument on the server's command line would win)",
    ))
}
