//! The tables' names, and the statements that create them.

use fencelock_core::Result;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::config::Config;
use super::error::{caller_error, is_conflict};

/// The quoted names of the tables.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) store: String,
    pub(crate) locks: String,
    pub(crate) holders: String,
    pub(crate) waiters: String,
    pub(crate) ears: String,
    pub(crate) draws: String,
    pub(crate) record: String,
    pub(crate) bound_record: String,
    pub(crate) names: String,
    pub(crate) bound: String,
    pub(crate) tokens: String,
    pub(crate) counter: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Leases,
    /// The tables for waking the waiters of leases. Leases also work without them.
    Ears,
    Connections,
    /// The record of a strategy on a connection, which is made with the first one.
    BoundRecord,
}

impl Tables {
    /// `table` is the common prefix: letters, digits and underscores.
    pub(crate) fn new(table: &str) -> Self {
        let named = |what: &str| format!("`{table}_{what}`");
        Self {
            store: named("store"),
            locks: named("locks"),
            holders: named("holders"),
            waiters: named("waiters"),
            ears: named("ears"),
            draws: named("draws"),
            record: named("record"),
            bound_record: named("bound_record"),
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
            .replace("{ears}", &self.ears)
            .replace("{draws}", &self.draws)
            .replace("{record}", &self.record)
            .replace("{bound_record}", &self.bound_record)
            .replace("{names}", &self.names)
            .replace("{bound}", &self.bound)
            .replace("{tokens}", &self.tokens)
            .replace("{counter}", &self.counter)
    }

    /// Statements that need each right to change the table of ears, and change nothing.
    pub(crate) fn ear_rights(&self) -> [String; 3] {
        let ears = &self.ears;
        [
            format!("INSERT INTO {ears} SELECT * FROM {ears} WHERE 1 = 0"),
            format!("UPDATE {ears} SET since = 0 WHERE 1 = 0"),
            format!("DELETE FROM {ears} WHERE 1 = 0"),
        ]
    }

    /// The script that creates all tables, with its comments, for an administrator.
    pub(crate) fn script(&self) -> String {
        let all = [
            include_str!("schema.sql"),
            include_str!("ears_schema.sql"),
            include_str!("bound_schema.sql"),
            include_str!("bound_record_schema.sql"),
        ];
        self.fill(&all.join("\n"))
    }

    /// Creates the missing tables for one use. Several clients may do this at once.
    pub(crate) async fn create(&self, conn: &mut Conn, what: Use, config: &Config) -> Result<()> {
        for statement in self.schema(what) {
            let mut tries = 10;
            while let Err(error) = conn.query_drop(&statement).await {
                tries -= 1;
                // Another client creates them as well, or the server works on a new table.
                let again =
                    matches!(&error, mysql_async::Error::Server(it) if is_conflict(it.code));
                if !again || tries == 0 {
                    let action = format!("creating the tables {}_...", config.table);
                    return Err(caller_error(&config.store, &action, error));
                }
            }
        }
        Ok(())
    }

    /// The statements for one use, one at a time.
    fn schema(&self, what: Use) -> Vec<String> {
        let script = match what {
            Use::Leases => include_str!("schema.sql"),
            Use::Ears => include_str!("ears_schema.sql"),
            Use::Connections => include_str!("bound_schema.sql"),
            Use::BoundRecord => include_str!("bound_record_schema.sql"),
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
