//! A fence in the protected row.

use fencelock_core::{Error, Sequencer};

use super::stored_marks::{COLUMN_DEFINITIONS, COLUMNS, StoredMarks, marks_of, passes, raise};
use super::table::TableName;
use crate::error::{FenceError, Result};

/// A fence in the protected row itself: one lock protects one row.
///
/// 1. Once: run [`RowFence::add_columns`].
/// 2. For each write: run [`RowFence::update`]. If it changed a row, the write is done.
/// 3. If it changed no row: read [`RowFence::select`], and pass the row to [`RowFence::explain`], which names the winner.
///
/// ```
/// # use fencelock_fence::sql::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let fence = RowFence::new("ledger")?;
/// let once = fence.add_columns();
/// let update = fence.update("balance = balance - 10", "id = 7", &holder);
/// // It changed no row? Then the answer to this query says why:
/// let why = fence.select("id = 7");
/// assert!(fence.explain(Some((35, 35, "ffeeddccbbaa99887766554433221100".into())), &holder).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RowFence {
    table: TableName,
}

impl RowFence {
    /// A fence in the rows of a table.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if the name has other characters than letters, digits, `_` and `.`.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fence = RowFence::new("bank.ledger")?;
    /// assert!(RowFence::new("ledger; DROP TABLE").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(table: &str) -> Result<Self, Error> {
        let table = TableName::new(table)?;
        Ok(Self { table })
    }

    /// The definitions of the columns for `CREATE TABLE`, in every dialect.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let create = format!("CREATE TABLE ledger (id INTEGER, {})", RowFence::columns());
    /// assert!(create.contains("fence_top"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn columns() -> &'static str {
        COLUMN_DEFINITIONS
    }

    /// The statements that add the columns to an existing table, in every dialect.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// for statement in RowFence::new("ledger")?.add_columns() {
    ///     assert!(statement.starts_with("ALTER TABLE ledger ADD COLUMN fence_"));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn add_columns(&self) -> Vec<String> {
        let columns = Self::columns().split(", ");
        columns
            .map(|column| format!("ALTER TABLE {} ADD COLUMN {column}", self.table))
            .collect()
    }

    /// The conditional write: sets `assignments` and the marks in the row that `which` selects, if the holder passes. Both
    /// are SQL, and may contain placeholders of your driver.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let update = RowFence::new("ledger")?.update("balance = ?1", "id = ?2", &holder);
    /// assert!(update.starts_with("UPDATE ledger SET balance = ?1, fence_exclusive = 34"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn update(&self, assignments: &str, which: &str, sequencer: &Sequencer) -> String {
        let (raise, passes) = (raise("", sequencer), passes("", sequencer));
        let table = &self.table;
        format!("UPDATE {table} SET {assignments}, {raise} WHERE ({which}) AND {passes}")
    }

    /// Reads the marks of the row for [`RowFence::explain`], in every dialect. In MySQL it locks the row: without a lock the
    /// statement would read the row as it was at the start of the transaction.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let select = RowFence::new("ledger")?.select("id = ?1");
    /// assert!(select.contains("FROM ledger WHERE (id = ?1)"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn select(&self, which: &str) -> String {
        let table = &self.table;
        // Only MySQL and MariaDB execute the text in such a comment.
        format!("SELECT {COLUMNS} FROM {table} WHERE ({which}) /*! FOR UPDATE */")
    }

    /// Why [`RowFence::update`] changed no row, from the result of [`RowFence::select`] after it. `Ok`: the update matched the
    /// row, which had those values already. MySQL does not count such a row as changed, unless the connection sets
    /// `CLIENT_FOUND_ROWS`.
    ///
    /// A shared holder also gets `Ok` in this case: the update found no row, and then another holder with a higher token
    /// inserted and wrote one. (The marks do not name each shared holder.) On databases that count a row with the same values
    /// as changed, `Ok` can only mean this case: run the update again. In MySQL run both statements in one transaction at
    /// `REPEATABLE READ`, where no row can be inserted in between.
    ///
    /// # Errors
    /// - [`FenceError::Stale`] if the holder was superseded.
    /// - [`FenceError::NoRow`] if there is no such row, or was none when the update ran.
    /// - [`FenceError::Damaged`] if the marks make no sense.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
    /// let fence = RowFence::new("ledger")?;
    /// let later = (35, 35, "ffeeddccbbaa99887766554433221100".to_owned());
    /// let error = fence.explain(Some(later), &holder).unwrap_err();
    /// assert_eq!(error.stale().map(|stale| stale.won.get()), Some(35));
    /// # Ok(())
    /// # }
    /// ```
    pub fn explain(&self, found: Option<StoredMarks>, sequencer: &Sequencer) -> Result<()> {
        let no_row = || FenceError::NoRow {
            resource: self.table.to_string(),
        };
        let marks = marks_of(&self.table, &found.ok_or_else(no_row)?)?;
        // The update would have raised the marks of a row that it found. So this row was inserted later.
        match marks.judge(sequencer)? == marks {
            true => Ok(()),
            false => Err(no_row()),
        }
    }
}
