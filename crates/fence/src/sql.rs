//! Fences in a database: the marks lie beside the data, and the check is part of the statement, or of the transaction, that
//! writes.
//!
//! The text of the statements is the same whichever driver runs them; tokens and claim ids stand in it as literals (they
//! are digits only), so that no placeholder of a driver is in the way. Two forms:
//!
//! * [`RowFence`]: three columns in the protected row, one guarded `UPDATE`.
//! * [`TableFence`]: a table of its own with a row per lock, for transactions that write more than one row. The driver
//!   helpers (`sqlite::pass`, `postgres::pass`, `mysql::pass`) run it.
//!
//! A fence lets the same holder pass again: a request that is sent twice is carried out twice. [`Operations`] beside either
//! form keeps each operation's outcome in the same transaction, and the second try gets it.
//!
//! ```
//! # use fencelock_fence::sql::RowFence;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let sequencer = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
//! let fence = RowFence::new("ledger")?;
//! assert_eq!(
//!     fence.update("balance = 90", "id = 7", &sequencer),
//!     "UPDATE ledger SET balance = 90, fence_exclusive = 34, fence_claim = '00112233445566778899aabbccddeeff', \
//!      fence_top = 34 WHERE (id = 7) AND (fence_top < 34 OR (fence_top = 34 \
//!      AND fence_claim = '00112233445566778899aabbccddeeff'))"
//! );
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "mysql")]
pub mod mysql;
mod operations;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use operations::{OPERATION_COLUMNS, Operation, Operations, StoredOperation};

use fencelock_core::{Error as LockError, Mode, Sequencer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::error::{FenceError, Result};
use crate::marks::Marks;

/// Which words the database wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB, with InnoDB.
    Mysql,
    /// SQLite 3.24 or later.
    Sqlite,
}

/// The columns of the marks, in the order in which [`StoredMarks`] has them.
pub const COLUMNS: &str = "fence_exclusive, fence_top, fence_claim";

/// The marks as a row has them: `fence_exclusive`, `fence_top`, `fence_claim`.
pub type StoredMarks = (i64, i64, String);

fn marks_of(resource: &str, stored: &StoredMarks) -> Result<Marks> {
    let (exclusive, top, claim) = stored;
    let damaged = || {
        let why = format!("{COLUMNS} are {stored:?}, which no fence wrote; restore them");
        FenceError::damaged(resource, why)
    };
    let number = |number: &i64| u64::try_from(*number).map_err(|_| damaged());
    let claim = match claim.trim_end() {
        "" => None,
        claim => Some(claim.parse().map_err(|_| damaged())?),
    };
    Ok(Marks {
        exclusive: number(exclusive)?,
        top: number(top)?,
        claim,
    })
}

/// What the `WHERE` asks, with `of` (such as `f.`) before each column.
fn passes(of: &str, sequencer: &Sequencer) -> String {
    let (token, claim) = (sequencer.token, sequencer.claim);
    match sequencer.mode {
        Mode::Exclusive => format!(
            "({of}fence_top < {token} OR ({of}fence_top = {token} AND {of}fence_claim = '{claim}'))"
        ),
        Mode::Shared | Mode::Permit { .. } => format!("{of}fence_exclusive < {token}"),
    }
}

/// What the `SET` sets, for a holder that passes. MySQL sets one column after the other and reads what it has just set, so
/// the claim comes before the top that it is compared with.
fn raise(of: &str, sequencer: &Sequencer) -> String {
    let (token, claim) = (sequencer.token, sequencer.claim);
    match sequencer.mode {
        Mode::Exclusive => {
            format!("fence_exclusive = {token}, fence_claim = '{claim}', fence_top = {token}")
        }
        Mode::Shared | Mode::Permit { .. } => format!(
            "fence_claim = CASE WHEN {of}fence_top < {token} THEN '{claim}' ELSE {of}fence_claim END, \
             fence_top = CASE WHEN {of}fence_top < {token} THEN {token} ELSE {of}fence_top END"
        ),
    }
}

/// Refuses what is no plain name of a table, so that none can smuggle in a statement.
fn table_name(table: &str) -> Result<String, LockError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if table.is_empty() || !table.chars().all(plain) {
        let why = "it must be letters, digits, _ and . only";
        return Err(LockError::invalid("table name", table, why));
    }
    Ok(table.to_owned())
}

/// A fence in the protected row itself: one lock protects one row.
///
/// 1. Once: [`RowFence::add_columns`].
/// 2. Run [`RowFence::update`]. A row changed: done.
/// 3. None changed: read [`RowFence::select`] and hand the row to [`RowFence::explain`], which says who won.
#[derive(Clone, Debug)]
pub struct RowFence {
    table: String,
}

impl RowFence {
    /// A fence in the rows of a table.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if that is no plain name.
    pub fn new(table: &str) -> Result<Self, LockError> {
        let table = table_name(table)?;
        Ok(Self { table })
    }

    /// The definitions of the columns, for a `CREATE TABLE`; for every dialect.
    #[must_use]
    pub const fn columns() -> &'static str {
        "fence_exclusive BIGINT NOT NULL DEFAULT 0, fence_top BIGINT NOT NULL DEFAULT 0, \
         fence_claim VARCHAR(32) NOT NULL DEFAULT ''"
    }

    /// The statements that add the columns to a table that is there already; for every dialect.
    #[must_use]
    pub fn add_columns(&self) -> Vec<String> {
        let columns = Self::columns().split(", ");
        columns
            .map(|column| format!("ALTER TABLE {} ADD COLUMN {column}", self.table))
            .collect()
    }

    /// The guarded write: sets `assignments` and the marks in the row that `which` names, if the holder passes. Both are
    /// SQL, with the placeholders of your driver if you like.
    #[must_use]
    pub fn update(&self, assignments: &str, which: &str, sequencer: &Sequencer) -> String {
        let (raise, passes) = (raise("", sequencer), passes("", sequencer));
        let table = &self.table;
        format!("UPDATE {table} SET {assignments}, {raise} WHERE ({which}) AND {passes}")
    }

    /// Reads the marks of the row, for [`RowFence::explain`]; for every dialect. In MySQL it locks the row, for what is read
    /// there without a lock is the row as it was when the transaction began.
    #[must_use]
    pub fn select(&self, which: &str) -> String {
        let table = &self.table;
        // MySQL and MariaDB read what is in such a comment, and the others do not.
        format!("SELECT {COLUMNS} FROM {table} WHERE ({which}) /*! FOR UPDATE */")
    }

    /// Why [`RowFence::update`] changed no row, from what [`RowFence::select`] found afterwards. `Ok`: this holder has written
    /// to the row, and it had those values already, which MySQL does not count as changed unless asked to
    /// (`CLIENT_FOUND_ROWS`).
    ///
    /// The marks do not name each shared holder. If there was no row when the update looked, and another holder with a
    /// higher token has written to one before it was read, a shared holder is told `Ok` as well. Where a row with the same
    /// values counts as changed, `Ok` can mean nothing else: run the update again then. In MySQL run both statements in one
    /// transaction, at `REPEATABLE READ`, where no row comes in between.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if it was superseded, [`FenceError::NoRow`] if there is no such row, or was none yet when the
    /// update looked, [`FenceError::Damaged`] if the marks make no sense.
    pub fn explain(&self, found: Option<StoredMarks>, sequencer: &Sequencer) -> Result<()> {
        let no_row = || FenceError::NoRow {
            resource: self.table.clone(),
        };
        let marks = marks_of(&self.table, &found.ok_or_else(no_row)?)?;
        // A row that the update had met would have the holder's marks by now: this one came after it.
        match marks.judge(sequencer)? == marks {
            true => Ok(()),
            false => Err(no_row()),
        }
    }
}

/// A fence in a table of its own, with one row for each lock: for a transaction that writes whatever it likes.
///
/// In the transaction, **before** it reads what it is going to change: run [`TableFence::mark`], read
/// [`TableFence::select`], hand the row to [`TableFence::judge`]; roll back if that refuses. The row stays locked until the
/// end of the transaction, so no other holder passes before the writes are there. In PostgreSQL use `READ COMMITTED`, or
/// be ready for serialization errors.
#[derive(Clone, Debug)]
pub struct TableFence {
    dialect: Dialect,
    table: String,
}

impl TableFence {
    /// A fence in the table `fencelock_fence`.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let table = "fencelock_fence".to_owned();
        Self { dialect, table }
    }

    /// A fence in another table.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if that is no plain name.
    pub fn in_table(dialect: Dialect, table: &str) -> Result<Self, LockError> {
        let table = table_name(table)?;
        Ok(Self { dialect, table })
    }

    /// The statement that makes the table if there is none.
    #[must_use]
    pub fn create(&self) -> String {
        let (name, end) = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => ("TEXT", ""),
            // A percent-encoded name of 512 bytes.
            Dialect::Mysql => (
                "VARCHAR(1536) CHARACTER SET ascii COLLATE ascii_bin",
                " ENGINE=InnoDB",
            ),
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {} (name {name} NOT NULL PRIMARY KEY, {}){end}",
            self.table,
            RowFence::columns()
        )
    }

    /// Raises the marks if the holder passes, and locks the row.
    #[must_use]
    pub fn mark(&self, sequencer: &Sequencer) -> String {
        let table = &self.table;
        let (name, token, claim) = (name_of(sequencer), sequencer.token, sequencer.claim);
        let exclusive = match sequencer.mode {
            Mode::Exclusive => token.get(),
            Mode::Shared | Mode::Permit { .. } => 0,
        };
        let insert = format!(
            "INSERT INTO {table} (name, {COLUMNS}) VALUES ('{name}', {exclusive}, {token}, '{claim}')"
        );
        match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => {
                let of = format!("{table}.");
                let (raise, passes) = (raise(&of, sequencer), passes(&of, sequencer));
                format!("{insert} ON CONFLICT (name) DO UPDATE SET {raise} WHERE {passes}")
            }
            Dialect::Mysql => {
                let passes = passes("", sequencer);
                // Each column by itself, for there is no WHERE; in an order in which what is set does not change the answer.
                let exclusive = match sequencer.mode {
                    Mode::Exclusive => {
                        format!("fence_exclusive = IF({passes}, {token}, fence_exclusive), ")
                    }
                    Mode::Shared | Mode::Permit { .. } => String::new(),
                };
                let higher = format!("{passes} AND fence_top < {token}");
                format!(
                    "{insert} ON DUPLICATE KEY UPDATE {exclusive}\
                     fence_claim = IF({higher}, '{claim}', fence_claim), \
                     fence_top = IF({higher}, {token}, fence_top)"
                )
            }
        }
    }

    /// Reads the marks after [`TableFence::mark`], in the same transaction.
    #[must_use]
    pub fn select(&self, sequencer: &Sequencer) -> String {
        let end = match self.dialect {
            Dialect::Sqlite => "",
            // The row as it is, and not as it was when the transaction began.
            Dialect::Postgres | Dialect::Mysql => " FOR UPDATE",
        };
        let (table, name) = (&self.table, name_of(sequencer));
        format!("SELECT {COLUMNS} FROM {table} WHERE name = '{name}'{end}")
    }

    /// Whether the holder has passed, from what [`TableFence::select`] found.
    ///
    /// # Errors
    /// [`FenceError::Stale`] if it was superseded, [`FenceError::NoRow`] if nothing was found (was `mark` run?),
    /// [`FenceError::Damaged`] if the marks make no sense.
    pub fn judge(&self, found: Option<StoredMarks>, sequencer: &Sequencer) -> Result<()> {
        let Some(stored) = found else {
            let resource = self.table.clone();
            return Err(FenceError::NoRow { resource });
        };
        // Those who passed are in the marks by now, and pass again.
        marks_of(&self.table, &stored)?.judge(sequencer)?;
        Ok(())
    }

    /// The table, for errors.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    fn failed(&self, cause: impl Into<fencelock_core::Cause>) -> FenceError {
        FenceError::write(&self.table, "pass", cause)
    }
}

/// Letters, digits and `%` only, whatever the name is.
fn name_of(sequencer: &Sequencer) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(sequencer.name.as_str(), NON_ALPHANUMERIC)
}
