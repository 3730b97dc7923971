//! Operations that are done once, however often they are requested.

use std::time::Duration;

use fencelock_core::{Error, Sequencer};

use super::dialect::Dialect;
use super::table::{LONGEST_NAME, TableName, encoded, lock_name};
use crate::error::{FenceError, Result};

/// The columns that [`Operations::select`] reads.
pub const OPERATION_COLUMNS: &str = "fingerprint, outcome";

/// An operation as a row stores it: `fingerprint`, `outcome`.
pub type StoredOperation = (String, Option<String>);

/// The longest id and the longest fingerprint, in bytes.
const LONGEST: usize = 255;

/// One thing to do, such as one payment. Every attempt has the same id, and no other operation has that id.
///
/// ```
/// # use fencelock_fence::sql::Operation;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let operation = Operation::new("order-4711")?.fingerprint("3 apples for Ann")?;
/// assert_eq!(operation.id(), "order-4711");
/// assert!(Operation::new("").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    id: String,
    fingerprint: String,
}

impl Operation {
    /// An operation by its id: 1 to 255 bytes of text, such as a UUID. The client chooses it before the first attempt, and
    /// sends the same id with every further attempt.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if it is empty or longer.
    pub fn new(id: &str) -> Result<Self, Error> {
        if id.is_empty() {
            let why = "it is empty; choose one for each operation, such as a UUID";
            return Err(Error::invalid("operation id", id, why));
        }
        Ok(Self {
            id: short_enough("operation id", id)?,
            fingerprint: String::new(),
        })
    }

    /// What the operation does, in 255 bytes of text at most, such as a digest of the request. A later attempt with the
    /// same id and another fingerprint is refused ([`FenceError::AnotherOperation`]): an id was used twice.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if it is longer.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let one = Operation::new("pay-4711")?.fingerprint("10 to Ann")?;
    /// let reused = Operation::new("pay-4711")?.fingerprint("90 to Bob")?;
    /// assert_ne!(one, reused);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fingerprint(self, of: &str) -> Result<Self, Error> {
        let fingerprint = short_enough("fingerprint", of)?;
        Ok(Self {
            fingerprint,
            ..self
        })
    }

    /// The id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn short_enough(what: &'static str, text: &str) -> Result<String, Error> {
    if text.len() > LONGEST {
        let why = "it is longer than 255 bytes; send a digest of it";
        return Err(Error::invalid(what, text, why));
    }
    Ok(text.to_owned())
}

/// A table of operations and their outcomes, next to a [`RowFence`](super::RowFence) or a
/// [`TableFence`](super::TableFence). A fence lets the same holder pass again, so without this table a request that is sent
/// twice would be carried out twice.
///
/// Do all of this in **one transaction**, and roll it back if a step fails:
///
/// 1. Run [`Operations::begin`]. If it inserted a row, this is the first attempt. Another transaction that begins the same
///    operation waits until this one ends.
/// 2. If it inserted no row: read [`Operations::select`], pass the row to [`Operations::outcome`], and answer with the
///    outcome. Write nothing, and do not check the fence: the operation is done already.
/// 3. The first attempt passes the fence, writes, and runs [`Operations::finish`] with its outcome. Commit.
///
/// The driver helpers do steps 1 and 2 (`sqlite::begin`, which has an example) and step 3 (`sqlite::finish`); there are the
/// same for `postgres` and `mysql`. Ids are counted for each lock separately. In PostgreSQL use `READ COMMITTED`, or be ready for
/// serialization errors.
///
/// An outcome is kept until [`Operations::prune`] deletes it. Run that now and then, and keep outcomes for longer than
/// any client repeats a request. After the deletion an attempt counts as the first one, and only the fence may refuse
/// it.
///
/// ```
/// # use fencelock_fence::sql::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let holder = "fl1:x:34:00112233445566778899aabbccddeeff:ledger".parse()?;
/// let (operations, pay) = (Operations::new(Dialect::Postgres), Operation::new("pay-4711")?);
/// let once = operations.create();
/// // First in each transaction; if it inserts no row, `select` finds the outcome:
/// let (begin, select) = (operations.begin(&holder, &pay), operations.select(&holder, &pay));
/// assert_eq!(operations.outcome(Some((String::new(), Some("paid".into()))), &pay)?, "paid");
/// // Last in the first attempt:
/// let finish = operations.finish(&holder, &pay);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Operations {
    dialect: Dialect,
    table: TableName,
}

impl Operations {
    /// Operations in the table `fencelock_operations`.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let table = TableName::fixed("fencelock_operations");
        Self { dialect, table }
    }

    /// Operations in another table.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if the name has other characters than letters, digits, `_` and `.`.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let operations = Operations::in_table(Dialect::Postgres, "bank.operations")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_table(dialect: Dialect, table: &str) -> Result<Self, Error> {
        let table = TableName::new(table)?;
        Ok(Self { dialect, table })
    }

    /// The statement that creates the table if it does not exist.
    #[must_use]
    pub fn create(&self) -> String {
        let (outcome, index) = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => ("TEXT", ""),
            // Without the index `prune` would lock every row that it reads.
            Dialect::Mysql => ("LONGTEXT CHARACTER SET utf8mb4", ", INDEX (done_at)"),
        };
        let (table, options) = (&self.table, self.dialect.table_options());
        let name = self.dialect.encoded_text(LONGEST_NAME);
        let id = self.dialect.encoded_text(LONGEST);
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (name {name} NOT NULL, operation {id} NOT NULL, fingerprint {id} NOT NULL, \
             token BIGINT NOT NULL, done_at BIGINT NOT NULL, outcome {outcome}, PRIMARY KEY (name, operation){index}){options}"
        )
    }

    /// Begins an operation: inserts its row unless there is one. Waits while another transaction does the same operation.
    #[must_use]
    pub fn begin(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let (table, token, now) = (&self.table, sequencer.token, self.now());
        let (name, id) = (lock_name(sequencer), encoded(&operation.id));
        let fingerprint = encoded(&operation.fingerprint);
        let (ignore, end) = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => {
                ("", " ON CONFLICT (name, operation) DO NOTHING")
            }
            Dialect::Mysql => ("IGNORE ", ""),
        };
        format!(
            "INSERT {ignore}INTO {table} (name, operation, fingerprint, token, done_at) \
             VALUES ('{name}', '{id}', '{fingerprint}', {token}, {now}){end}"
        )
    }

    /// Reads the outcome of an operation, after an [`Operations::begin`] that inserted no row.
    #[must_use]
    pub fn select(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let end = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => "",
            // Otherwise it would read the row as it was at the start of the transaction.
            Dialect::Mysql => " LOCK IN SHARE MODE",
        };
        let (table, which) = (&self.table, which(sequencer, operation));
        format!("SELECT {OPERATION_COLUMNS} FROM {table} WHERE {which}{end}")
    }

    /// The outcome of the first attempt, from the result of [`Operations::select`].
    ///
    /// # Errors
    /// [`FenceError::AnotherOperation`] if the fingerprints differ, [`FenceError::Damaged`] if a transaction was committed
    /// without [`Operations::finish`], or if there is no row: it was pruned at that moment, or `begin` was not run.
    ///
    /// ```
    /// # use fencelock_fence::sql::*;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let operations = Operations::new(Dialect::Postgres);
    /// let found = ("10 to Ann".to_owned(), Some("paid".to_owned()));
    /// let other = Operation::new("pay-4711")?.fingerprint("90 to Bob")?;
    /// assert!(operations.outcome(Some(found), &other).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn outcome(&self, found: Option<StoredOperation>, operation: &Operation) -> Result<String> {
        let resource = self.table.to_string();
        let id = operation.id.clone();
        let Some((fingerprint, outcome)) = found else {
            let why =
                format!("operation {id:?} is not there (any more); roll back, and begin it again");
            return Err(FenceError::damaged(resource, why));
        };
        if fingerprint != encoded(&operation.fingerprint).to_string() {
            return Err(FenceError::AnotherOperation { resource, id });
        }
        outcome.ok_or_else(|| {
            let why = format!(
                "operation {id:?} was committed without an outcome; find out whether it was carried out, and set its outcome or \
                 delete its row"
            );
            FenceError::damaged(resource, why)
        })
    }

    /// Stores the outcome of the operation that this transaction has begun. The statement has one placeholder, for the
    /// outcome: text that is enough to answer the same request again. It must change one row.
    #[must_use]
    pub fn finish(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let placeholder = match self.dialect {
            Dialect::Postgres => "$1",
            Dialect::Sqlite | Dialect::Mysql => "?",
        };
        let (table, which) = (&self.table, which(sequencer, operation));
        format!("UPDATE {table} SET outcome = {placeholder} WHERE {which} AND outcome IS NULL")
    }

    /// Deletes the operations that were begun longer ago, by the clock of the database.
    ///
    /// ```
    /// # use fencelock_fence::sql::{Dialect, Operations};
    /// # use std::time::Duration;
    /// let week = Duration::from_secs(7 * 24 * 3600);
    /// assert_eq!(
    ///     Operations::new(Dialect::Mysql).prune(week),
    ///     "DELETE FROM fencelock_operations WHERE done_at < UNIX_TIMESTAMP() - 604800"
    /// );
    /// ```
    #[must_use]
    pub fn prune(&self, older_than: Duration) -> String {
        let (table, now, seconds) = (&self.table, self.now(), older_than.as_secs());
        format!("DELETE FROM {table} WHERE done_at < {now} - {seconds}")
    }

    /// Seconds since 1970.
    fn now(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)",
            Dialect::Mysql => "UNIX_TIMESTAMP()",
            Dialect::Sqlite => "CAST(strftime('%s', 'now') AS INTEGER)",
        }
    }

    /// An error of the database.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(super) fn failed(
        &self,
        action: &'static str,
        cause: impl Into<fencelock_core::Cause>,
    ) -> FenceError {
        FenceError::write(self.table.to_string(), action, cause)
    }

    /// Whether the outcome was stored, by the number of rows that [`Operations::finish`] changed.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(super) fn finished(&self, changed: u64, operation: &Operation) -> Result<()> {
        if changed == 1 {
            return Ok(());
        }
        let id = &operation.id;
        let why = format!(
            "operation {id:?} was not begun in this transaction; roll back, and begin it first"
        );
        Err(FenceError::damaged(self.table.to_string(), why))
    }
}

fn which(sequencer: &Sequencer, operation: &Operation) -> String {
    let (name, id) = (lock_name(sequencer), encoded(&operation.id));
    format!("name = '{name}' AND operation = '{id}'")
}
