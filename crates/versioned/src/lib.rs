//! Rows with a version: the optimistic way. No lock: read a row with its version, and write it only if the version is
//! still that one; else read again.
//!
//! It fits where conflicts are rare and a repeated attempt costs little. Nobody waits for a holder, and nobody needs to be
//! told of one that died. Where conflicts are common, a lock is cheaper.
//!
//! [`Versioned`] makes the text of the statements, for whichever driver runs them. What goes wrong with home-made versions:
//!
//! * *A, B, A*: comparing the value instead of a version misses that it was changed and changed back. Versions only grow.
//! * *Delete and insert*: a new row whose versions begin where those of the old one did. The triggers of
//!   [`Versioned::triggers`] let them begin elsewhere.
//! * *Writers that bypass the version*: an `UPDATE` that does not know of it changes the row without anybody noticing. With
//!   the triggers it counts the version up as well.
//! * *Several rows*: write all of them in one transaction, and roll it back if one has changed. Write them in one order
//!   everywhere, or be ready for deadlocks, which [`retry`] mends as it does conflicts.
//!
//! ```
//! # use fencelock_versioned::{Version, Versioned};
//! # fn main() -> Result<(), fencelock_core::Error> {
//! let accounts = Versioned::new("accounts")?;
//! assert_eq!(
//!     accounts.select("balance", "id = 7"),
//!     "SELECT version, balance FROM accounts WHERE (id = 7)"
//! );
//! assert_eq!(
//!     accounts.update("balance = 90", "id = 7", Version(26)),
//!     "UPDATE accounts SET balance = 90, version = version + 1 WHERE (id = 7) AND version = 26"
//! );
//! # Ok(())
//! # }
//! ```

mod retry;

use std::fmt;

use fencelock_core::{Error, Result};

pub use retry::{Attempt, NotWritten, Retry, retry, retry_blocking};

/// Which words the database wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB, with InnoDB.
    Mysql,
    /// SQLite.
    Sqlite,
}

/// The version of a row, as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub i64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A table whose rows have a version.
///
/// Conditions and assignments are SQL, with the placeholders of your driver if you like. An [`Versioned::update`] or
/// [`Versioned::delete`] that changed no row means that the row was changed since it was read, or is gone.
#[derive(Clone, Debug)]
pub struct Versioned {
    table: String,
    column: String,
}

impl Versioned {
    /// The table, with its versions in the column `version`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is no plain name (letters, digits, `_` and, before the table, a schema and a dot).
    pub fn new(table: &str) -> Result<Self> {
        Self::in_column(table, "version")
    }

    /// The same, with the versions in another column.
    ///
    /// # Errors
    /// As [`Versioned::new`].
    pub fn in_column(table: &str, column: &str) -> Result<Self> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name = |what, name: &str, dots: bool| {
            if name.is_empty() || !name.chars().all(|c| plain(c) || (dots && c == '.')) {
                let why = "it must be letters, digits and _ only";
                return Err(Error::invalid(what, name, why));
            }
            Ok(name.to_owned())
        };
        Ok(Self {
            table: name("table name", table, true)?,
            column: name("column name", column, false)?,
        })
    }

    /// The definition of the column, for a `CREATE TABLE`; for every dialect.
    #[must_use]
    pub fn column(&self) -> String {
        format!("{} BIGINT NOT NULL DEFAULT 1", self.column)
    }

    /// The statement that adds the column to a table that is there already; for every dialect.
    #[must_use]
    pub fn add_column(&self) -> String {
        format!("ALTER TABLE {} ADD COLUMN {}", self.table, self.column())
    }

    /// The statements that make the database itself keep the versions: an `UPDATE` that does not count up is counted, and
    /// the versions of a new row begin where no earlier row with its key can have been. To be run once, one at a time; they
    /// replace what they made before.
    ///
    /// On MySQL with a binary log the user needs `log_bin_trust_function_creators` or more. SQLite's need a table with a
    /// `rowid`.
    #[must_use]
    pub fn triggers(&self, dialect: Dialect) -> Vec<String> {
        let Self { table, column } = self;
        let name = format!("{}_{column}", table.replace('.', "_"));
        match dialect {
            Dialect::Postgres => vec![
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
            ],
            Dialect::Mysql => vec![
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
            ],
            // Its clock has no microseconds, so versions begin at random.
            Dialect::Sqlite => vec![
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
            ],
        }
    }

    /// Reads the version first, and then these columns.
    #[must_use]
    pub fn select(&self, columns: &str, which: &str) -> String {
        let Self { table, column } = self;
        format!("SELECT {column}, {columns} FROM {table} WHERE ({which})")
    }

    /// Writes if the version is still this one.
    #[must_use]
    pub fn update(&self, assignments: &str, which: &str, seen: Version) -> String {
        let Self { table, column } = self;
        format!(
            "UPDATE {table} SET {assignments}, {column} = {column} + 1 WHERE ({which}) AND {column} = {seen}"
        )
    }

    /// Deletes if the version is still this one.
    #[must_use]
    pub fn delete(&self, which: &str, seen: Version) -> String {
        let Self { table, column } = self;
        format!("DELETE FROM {table} WHERE ({which}) AND {column} = {seen}")
    }
}

/// Whether MySQL or MariaDB undid a transaction only because others were in its way (a deadlock, a lock that was waited for
/// too long): repeat it as a whole.
#[cfg(feature = "mysql")]
#[must_use]
pub fn is_mysql_conflict(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(server) if matches!(server.code, 1020 | 1205 | 1213))
}

/// Whether PostgreSQL undid a transaction only because others were in its way (a deadlock, a failed serialization, a lock
/// that was waited for too long): repeat it as a whole.
#[cfg(feature = "postgres")]
#[must_use]
pub fn is_postgres_conflict(error: &tokio_postgres::Error) -> bool {
    use tokio_postgres::error::SqlState;
    let mended = [
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::LOCK_NOT_AVAILABLE,
    ];
    error.code().is_some_and(|code| mended.contains(code))
}

/// Whether SQLite refused only because others were in the way (the file is busy, or was changed since it was read): repeat
/// the transaction as a whole.
#[cfg(feature = "sqlite")]
#[must_use]
pub fn is_sqlite_conflict(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    let code = error.sqlite_error_code();
    matches!(
        code,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_refused() {
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
