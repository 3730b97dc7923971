//! The tables' names, and the statements that make them.

use fencelock_core::Result;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::config::Config;
use super::wire::{is_in_the_way, told};

/// Names of tables, quoted.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) store: String,
    pub(crate) locks: String,
    pub(crate) holders: String,
    pub(crate) waiters: String,
    pub(crate) draws: String,
    pub(crate) names: String,
    pub(crate) bound: String,
    pub(crate) tokens: String,
    pub(crate) counter: String,
}

/// What the tables are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    Leases,
    /// Locks that hang on a connection.
    Connections,
}

impl Tables {
    /// All begin with `table`, which is letters, digits and underscores.
    pub(crate) fn new(table: &str) -> Self {
        let named = |what: &str| format!("`{table}_{what}`");
        Self {
            store: named("store"),
            locks: named("locks"),
            holders: named("holders"),
            waiters: named("waiters"),
            draws: named("draws"),
            names: named("names"),
            bound: named("bound"),
            tokens: named("tokens"),
            counter: named("counter"),
        }
    }

    fn fill(&self, script: &str) -> String {
        script
            .replace("{store}", &self.store)
            .replace("{locks}", &self.locks)
            .replace("{holders}", &self.holders)
            .replace("{waiters}", &self.waiters)
            .replace("{draws}", &self.draws)
            .replace("{names}", &self.names)
            .replace("{bound}", &self.bound)
            .replace("{tokens}", &self.tokens)
            .replace("{counter}", &self.counter)
    }

    /// The text that makes them all, comments and all, to be run by whoever may.
    pub(crate) fn script(&self) -> String {
        let all = [include_str!("schema.sql"), include_str!("bound_schema.sql")];
        self.fill(&all.join("\n"))
    }

    /// Makes those for one use that are not there. May be done by several at once.
    pub(crate) async fn make(&self, conn: &mut Conn, what: For, config: &Config) -> Result<()> {
        for statement in self.schema(what) {
            let mut tries = 10;
            while let Err(error) = conn.query_drop(&statement).await {
                tries -= 1;
                // In the way of somebody else who makes them, or of the server's own work on a new table.
                let again =
                    matches!(&error, mysql_async::Error::Server(it) if is_in_the_way(it.code));
                if !again || tries == 0 {
                    let action = format!("make the tables {}_...", config.table);
                    return Err(told(&config.store, &action, error));
                }
            }
        }
        Ok(())
    }

    /// The statements for one use, one at a time.
    fn schema(&self, what: For) -> Vec<String> {
        let script = match what {
            For::Leases => include_str!("schema.sql"),
            For::Connections => include_str!("bound_schema.sql"),
        };
        let script = self.fill(script);
        let code = script
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join("\n");
        let statements = code.split(';').map(str::trim);
        let statements = statements.filter(|statement| !statement.is_empty());
        statements.map(str::to_owned).collect()
    }
}
