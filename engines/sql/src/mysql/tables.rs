//! The tables' names, and the statements that make them.

/// Names of tables, quoted.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) store: String,
    pub(crate) locks: String,
    pub(crate) holders: String,
    pub(crate) waiters: String,
}

impl Tables {
    /// All begin with `table`, which is letters, digits and underscores.
    pub(crate) fn new(table: &str) -> Self {
        Self {
            store: format!("`{table}_store`"),
            locks: format!("`{table}_locks`"),
            holders: format!("`{table}_holders`"),
            waiters: format!("`{table}_waiters`"),
        }
    }

    /// The text that makes them, comments and all, to be run by whoever may.
    pub(crate) fn script(&self) -> String {
        include_str!("schema.sql")
            .replace("{store}", &self.store)
            .replace("{locks}", &self.locks)
            .replace("{holders}", &self.holders)
            .replace("{waiters}", &self.waiters)
    }

    /// The same, a statement at a time.
    pub(crate) fn schema(&self) -> Vec<String> {
        let script = self.script();
        let code = script
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join("\n");
        let statements = code.split(';').map(str::trim);
        let statements = statements.filter(|statement| !statement.is_empty());
        statements.map(str::to_owned).collect()
    }
}
