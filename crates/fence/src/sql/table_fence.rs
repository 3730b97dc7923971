//! A fence in a table of its own.

use fencelock_core::{Error, Mode, Sequencer};

use super::dialect::Dialect;
use super::stored_marks::{COLUMN_DEFINITIONS, COLUMNS, StoredMarks, marks_of, passes, raise};
use super::table::{LONGEST_NAME, TableName, lock_name};
use crate::error::{FenceError, Result};

/// A fence in a table of its own, with one row for each lock: for a transaction with any number of writes.
///
/// In the transaction, **before** it reads the data that it changes: run [`TableFence::mark`], read
/// [`TableFence::select`], and pass the row to [`TableFence::judge`]. If that is an error, roll back. The row stays locked
/// until the transaction ends, so no other holder passes before the writes are committed. In PostgreSQL use `READ COMMITTED`,
/// or be ready for serialization errors.
///
/// ```
/// # use fencelock_fence::sql::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let fence = TableFence::new(Dialect::Postgres);
/// let once = fence.create();
/// // In each transaction, first:
/// let (mark, select) = (fence.mark(&holder), fence.select(&holder));
/// let found = (34, 34, "00112233445566778899aabbccddeeff".to_owned()); // what `select` returned
/// fence.judge(Some(found), &holder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TableFence {
    dialect: Dialect,
    table: TableName,
}

impl TableFence {
    /// A fence in the table `fencelock_fence`.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fence = TableFence::new(Dialect::Mysql);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let table = TableName::fixed("fencelock_fence");
        Self { dialect, table }
    }

    /// A fence in another table.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if the name has other characters than letters, digits, `_` and `.`.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fence = TableFence::in_table(Dialect::Postgres, "bank.fence")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_table(dialect: Dialect, table: &str) -> Result<Self, Error> {
        let table = TableName::new(table)?;
        Ok(Self { dialect, table })
    }

    /// The statement that creates the table if it does not exist.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let create = TableFence::new(Dialect::Postgres).create();
    /// assert!(create.starts_with("CREATE TABLE IF NOT EXISTS"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn create(&self) -> String {
        let (table, name) = (&self.table, self.dialect.encoded_text(LONGEST_NAME));
        let options = self.dialect.table_options();
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name {name} NOT NULL PRIMARY KEY, {COLUMN_DEFINITIONS}){options}"
        )
    }

    /// Raises the marks if the holder passes, and locks the row.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let mark = TableFence::new(Dialect::Postgres).mark(&holder);
    /// assert!(mark.starts_with("INSERT INTO fencelock_fence"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mark(&self, sequencer: &Sequencer) -> String {
        let table = &self.table;
        let (name, token, claim) = (lock_name(sequencer), sequencer.token, sequencer.claim);
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
                // There is no WHERE here, so each assignment has the condition. MySQL assigns from left to right, so
                // the columns that the condition reads come last.
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
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let select = TableFence::new(Dialect::Postgres).select(&holder);
    /// assert!(select.contains("'ledger'"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn select(&self, sequencer: &Sequencer) -> String {
        let end = match self.dialect {
            Dialect::Sqlite => "",
            // Otherwise it would read the row as it was at the start of the transaction.
            Dialect::Postgres | Dialect::Mysql => " FOR UPDATE",
        };
        let (table, name) = (&self.table, lock_name(sequencer));
        format!("SELECT {COLUMNS} FROM {table} WHERE name = '{name}'{end}")
    }

    /// Whether the holder has passed, from the result of [`TableFence::select`].
    ///
    /// # Errors
    /// [`FenceError::Stale`] if the holder was superseded, [`FenceError::NoRow`] if there is no row (was `mark` run?),
    /// [`FenceError::Damaged`] if the marks make no sense.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = TableFence::new(Dialect::Postgres);
    /// let later = (35, 35, "ffeeddccbbaa99887766554433221100".to_owned());
    /// assert!(fence.judge(Some(later), &holder).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn judge(&self, found: Option<StoredMarks>, sequencer: &Sequencer) -> Result<()> {
        let Some(stored) = found else {
            let resource = self.table.to_string();
            return Err(FenceError::NoRow { resource });
        };
        // A holder that passed has raised the marks, and passes again.
        marks_of(&self.table, &stored)?.judge(sequencer)?;
        Ok(())
    }

    /// An error of the database.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(super) fn failed(&self, cause: impl Into<fencelock_core::Cause>) -> FenceError {
        FenceError::write(self.table.to_string(), "pass", cause)
    }
}
