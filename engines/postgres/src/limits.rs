//! What stands between a server, as it is configured, and correctness.

use fencelock_core::{Finding, Result};

use super::config::Strategy;
use super::connection::{Server, Session};

const ASK: &str = "\
    SELECT current_setting('fsync'), current_setting('full_page_writes'), \
    EXISTS (SELECT 1 FROM pg_stat_replication), \
    current_setting('synchronous_standby_names') <> '', current_setting('synchronous_commit')";

/// Asks the server.
pub(super) async fn found(
    server: &Server,
    session: &mut Session,
    strategy: Strategy,
) -> Result<Vec<Finding>> {
    let rows = session
        .query(server, "ask for its settings", ASK, &[])
        .await?;
    let row = rows
        .first()
        .ok_or_else(|| server.internal("no answer to a SELECT"))?;
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
        // With names, some are to be waited for, whether or not one streams at the moment; `off` is mended by a connection.
        match commit {
            "local" if names => limit(
                "synchronous_commit is local: the standbys are not waited for, and one that is promoted may have forgotten who \
                 holds, and grant a lock twice (its tokens do not go back)",
                "ALTER ROLE this user SET synchronous_commit = on, which lasts",
            ),
            "remote_write" if names => limit(
                "synchronous_commit is remote_write: a standby whose machine went down, too, may have forgotten who holds when it \
                 is promoted, and grant a lock twice (its tokens do not go back)",
                "ALTER ROLE this user SET synchronous_commit = on, which lasts",
            ),
            _ => {}
        }
        // A replica that does not stream at the moment is known by its host.
        let follows = match row.get(2) {
            true => Some("a replica streams"),
            false => (server.config.hosts.len() > 1).then_some("another host follows"),
        };
        if let (Some(follows), false) = (follows, names) {
            limit(
                &format!(
                    "{follows} without being waited for: promoted, it may have forgotten who holds, and grant a lock twice (its tokens do not go back)"
                ),
                "set synchronous_standby_names: ALTER SYSTEM, then reload, which lasts (an argument on the server's command line would win)",
            );
        }
    }
    if server.config.hosts.len() > 1 && strategy != Strategy::Lease {
        limit(
            "after a switch-over to another host nobody there knows who held: a holder that is still cut off from the new host believes until its ttl is over",
            "use the default strategy, lease, with synchronous_standby_names, or one host",
        );
    }
    Ok(limits)
}
