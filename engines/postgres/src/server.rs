//! The settings of the server, and the limits that follow from them.

use fencelock_core::{Finding, Result};

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
    let mut limits = Vec::new();
    let mut limit = |what: &str, change: &str| {
        let (what, change) = (what.to_owned(), change.to_owned());
        limits.push(Finding::against_correctness(what, change));
    };
    if strategy == Strategy::Lease {
        for (at, name) in [(0, "fsync"), (1, "full_page_writes")] {
            if row.get::<_, &str>(at) == "off" {
                limit(
                    &format!(
                        "{name} is off: after a loss of power the server may have forgotten who holds, and grant a lock twice"
                    ),
                    &format!(
                        "set {name} = on: ALTER SYSTEM, then reload, which lasts (an argument on the server's command line would win)"
                    ),
                );
            }
        }
        let (names, commit): (bool, &str) = (row.get(3), row.get(4));
        // With names, the server waits for standbys, whether or not one streams at the moment. Each connection corrects `off`.
        match commit {
            "local" if names => limit(
                "synchronous_commit is local: the server does not wait for its standbys, and a promoted one may have missed who \
                 holds, and grant a lock twice (its tokens do not go back)",
                "ALTER ROLE this user SET synchronous_commit = on, which lasts",
            ),
            "remote_write" if names => limit(
                "synchronous_commit is remote_write: a promoted standby whose machine went down as well may have forgotten who \
                 holds, and grant a lock twice (its tokens do not go back)",
                "ALTER ROLE this user SET synchronous_commit = on, which lasts",
            ),
            _ => {}
        }
        // If a replica does not stream at the moment, its host in the URL shows that there is one.
        let follows = match row.get(2) {
            true => Some("a replica streams"),
            false => (hosts.config.hosts.len() > 1).then_some("another host follows"),
        };
        if let (Some(follows), false) = (follows, names) {
            limit(
                &format!(
                    "{follows}, and the server does not wait for it: promoted, it may have missed who holds, and grant a lock twice (its tokens do not go back)"
                ),
                "set synchronous_standby_names: ALTER SYSTEM, then reload, which lasts (an argument on the server's command line would win)",
            );
        }
    }
    if hosts.config.hosts.len() > 1 && strategy != Strategy::Lease {
        limit(
            "after a switch-over the new host does not know who held: a holder that is still cut off from it trusts its grant until its ttl is over",
            "use the default strategy, lease, with synchronous_standby_names, or one host",
        );
    }
    Ok(limits)
}
