//! The statements for versioned rows.

use std::fmt;

use fencelock_core::{Error, Result};

/// The kind of database.
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let accounts = Versioned::new("accounts")?;
/// let triggers = accounts.triggers(Dialect::Sqlite);
/// assert!(triggers.iter().any(|trigger| trigger.starts_with("CREATE TRIGGER")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB, with InnoDB.
    Mysql,
    /// SQLite.
    Sqlite,
}

/// The version of a row.
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let accounts = Versioned::new("accounts")?;
/// let seen = Version(26); // from the first column of `select`
/// assert!(accounts.delete("id = 7", seen).ends_with("AND version = 26"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub i64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A table whose rows have a version.
///
/// Conditions and assignments are SQL; they may contain placeholders of your driver. If [`Versioned::update`] or
/// [`Versioned::delete`] changed no row, the row was changed or deleted since it was read.
///
/// ```
/// # use fencelock_versioned::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let bank = rusqlite::Connection::open_in_memory()?;
/// # bank.execute_batch("CREATE TABLE accounts (id INTEGER, version INTEGER, balance INTEGER)")?;
/// # bank.execute_batch("INSERT INTO accounts VALUES (7, 1, 100)")?;
/// # let accounts = Versioned::new("accounts")?;
/// let row = |row: &rusqlite::Row<'_>| Ok((Version(row.get(0)?), row.get::<_, i64>(1)?));
/// let (seen, balance) = bank.query_row(&accounts.select("balance", "id = 7"), [], row)?;
/// let update = accounts.update("balance = ?1", "id = 7", seen);
/// assert_eq!(bank.execute(&update, [balance - 10])?, 1);
/// assert_eq!(bank.execute(&update, [balance - 20])?, 0); // the row has another version now
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Versioned {
    table: String,
    column: String,
}

impl Versioned {
    /// A table with its versions in the column `version`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name has other characters than ASCII letters, digits and `_`. Before the table there may be a
    /// schema and a dot.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let accounts = Versioned::new("bank.accounts")?;
    /// assert!(Versioned::new("accounts; DROP TABLE").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(table: &str) -> Result<Self> {
        Self::in_column(table, "version")
    }

    /// A table with its versions in another column.
    ///
    /// # Errors
    /// As [`Versioned::new`].
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let accounts = Versioned::in_column("accounts", "revision")?;
    /// assert_eq!(accounts.select("balance", "id = 7"), "SELECT revision, balance FROM accounts WHERE (id = 7)");
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_column(table: &str, column: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = |what, name: &str, dots: bool| {
            if name.is_empty() || !name.chars().all(|c| plain(c) || (dots && c == '.')) {
                let why = "it may only contain letters, digits and _";
                return Err(Error::invalid(what, name, why));
            }
            Ok(name.to_owned())
        };
        Ok(Self {
            table: name("table name", table, true)?,
            column: name("column name", column, false)?,
        })
    }

    /// The definition of the column for `CREATE TABLE`, in every dialect.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let accounts = Versioned::new("accounts")?;
    /// let create = format!("CREATE TABLE accounts (id INTEGER, {})", accounts.column());
    /// assert!(create.ends_with("version BIGINT NOT NULL DEFAULT 1)"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn column(&self) -> String {
        format!("{} BIGINT NOT NULL DEFAULT 1", self.column)
    }

    /// The statement that adds the column to an existing table, in every dialect.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let accounts = Versioned::new("accounts")?;
    /// assert!(accounts.add_column().starts_with("ALTER TABLE accounts ADD COLUMN version"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn add_column(&self) -> String {
        format!("ALTER TABLE {} ADD COLUMN {}", self.table, self.column())
    }

    /// The statements that make the database itself keep the versions. Run them once, one at a time. They replace what
    /// they created before.
    ///
    /// Then every `UPDATE` increases the version, even an `UPDATE` that ignores it. And a new row starts with a version
    /// that no earlier row with its key has had.
    ///
    /// On MySQL with a binary log the user needs `log_bin_trust_function_creators` or more. On SQLite the table needs a
    /// `rowid`.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let bank = rusqlite::Connection::open_in_memory()?;
    /// # bank.execute_batch("CREATE TABLE accounts (id INTEGER, version INTEGER, balance INTEGER)")?;
    /// # bank.execute_batch("INSERT INTO accounts VALUES (7, 1, 100)")?;
    /// # let accounts = Versioned::new("accounts")?;
    /// for statement in accounts.triggers(Dialect::Sqlite) {
    ///     bank.execute_batch(&statement)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn triggers(&self, dialect: Dialect) -> Vec<String> {
        match dialect {
            Dialect::Postgres => self.postgres_triggers(),
            Dialect::Mysql => self.mysql_triggers(),
            Dialect::Sqlite => self.sqlite_triggers(),
        }
    }

    /// The names of triggers begin with this.
    fn trigger_name(&self) -> String {
        format!("{}_{}", self.table.replace('.', "_"), self.column)
    }

    fn postgres_triggers(&self) -> Vec<String> {
        let (Self { table, column }, name) = (self, self.trigger_name());
        vec![
            format!(
                "CREATE OR REPLACE FUNCTION {name}_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 IF TG_OP = 'INSERT' THEN \
                 NEW.{column} := greatest(NEW.{column}, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint); \
                 ELSIF NEW.{column} <= OLD.{column} THEN NEW.{column} := OLD.{column} + 1; END IF; \
                 RETURN NEW; END $$"
            ),
            format!("DROP TRIGGER IF EXISTS {name}_keep ON {table}"),
            format!(
                "CREATE TRIGGER {name}_keep BEFORE INSERT OR UPDATE ON {table} \
                 FOR EACH ROW EXECUTE FUNCTION {name}_keep()"
            ),
        ]
    }

    fn mysql_triggers(&self) -> Vec<String> {
        let (Self { table, column }, name) = (self, self.trigger_name());
        vec![
            format!("DROP TRIGGER IF EXISTS {name}_begin"),
            format!(
                "CREATE TRIGGER {name}_begin BEFORE INSERT ON {table} FOR EACH ROW SET NEW.{column} = \
                 GREATEST(NEW.{column}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))"
            ),
            format!("DROP TRIGGER IF EXISTS {name}_keep"),
            format!(
                "CREATE TRIGGER {name}_keep BEFORE UPDATE ON {table} FOR EACH ROW SET NEW.{column} = \
                 IF(NEW.{column} <= OLD.{column}, OLD.{column} + 1, NEW.{column})"
            ),
        ]
    }

    /// The first version is random, because SQLite's clock has no microseconds.
    fn sqlite_triggers(&self) -> Vec<String> {
        let (Self { table, column }, name) = (self, self.trigger_name());
        vec![
            format!("DROP TRIGGER IF EXISTS {name}_begin"),
            format!(
                "CREATE TRIGGER {name}_begin AFTER INSERT ON {table} BEGIN \
                 UPDATE {table} SET {column} = max(NEW.{column}, 1) + (abs(random() / 2) >> 11) \
                 WHERE rowid = NEW.rowid; END"
            ),
            format!("DROP TRIGGER IF EXISTS {name}_keep"),
            format!(
                "CREATE TRIGGER {name}_keep AFTER UPDATE ON {table} WHEN NEW.{column} <= OLD.{column} BEGIN \
                 UPDATE {table} SET {column} = OLD.{column} + 1 WHERE rowid = NEW.rowid; END"
            ),
        ]
    }

    /// Reads the version, followed by these columns.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let accounts = Versioned::new("accounts")?;
    /// assert_eq!(accounts.select("balance", "id = ?1"), "SELECT version, balance FROM accounts WHERE (id = ?1)");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn select(&self, columns: &str, which: &str) -> String {
        let Self { table, column } = self;
        format!("SELECT {column}, {columns} FROM {table} WHERE ({which})")
    }

    /// Writes if the row still has this version.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let accounts = Versioned::new("accounts")?;
    /// let update = accounts.update("balance = ?1", "id = ?2", Version(26));
    /// assert!(update.ends_with("version = version + 1 WHERE (id = ?2) AND version = 26"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn update(&self, assignments: &str, which: &str, seen: Version) -> String {
        let Self { table, column } = self;
        format!(
            "UPDATE {table} SET {assignments}, {column} = {column} + 1 WHERE ({which}) AND {column} = {seen}"
        )
    }

    /// Deletes if the row still has this version.
    ///
    /// ```
    /// # use fencelock_versioned::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let accounts = Versioned::new("accounts")?;
    /// let delete = accounts.delete("id = ?1", Version(26));
    /// assert_eq!(delete, "DELETE FROM accounts WHERE (id = ?1) AND version = 26");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn delete(&self, which: &str, seen: Version) -> String {
        let Self { table, column } = self;
        format!("DELETE FROM {table} WHERE ({which}) AND {column} = {seen}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_other_characters_are_refused() {
        for table in ["", "a b", "a;b", "a'", "a`"] {
            let error = Versioned::new(table).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        }
        assert!(Versioned::in_column("a.b", "c.d").is_err());
        let other = Versioned::in_column("a.b", "seen").unwrap();
        assert_eq!(
            other.delete("id = 1", Version(2)),
            "DELETE FROM a.b WHERE (id = 1) AND seen = 2"
        );
    }
}
