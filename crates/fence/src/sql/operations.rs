//! Operations that are done once, however often they are asked for.

use std::fmt::Display;
use std::time::Duration;

use fencelock_core::{Error as LockError, Sequencer};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{Dialect, name_of, table_name};
use crate::error::{FenceError, Result};

/// The columns that [`Operations::select`] reads.
pub const OPERATION_COLUMNS: &str = "fingerprint, outcome";

/// An operation as a row has it: `fingerprint`, `outcome`.
pub type StoredOperation = (String, Option<String>);

/// The longest id and the longest fingerprint, in bytes.
const LONGEST: usize = 255;

/// One thing to do, such as one payment: every try at it has the same id, and nothing else has that id.
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
    /// An operation by its id: 1 to 255 bytes of text, such as a UUID. Whoever asks for the operation chooses it once, before
    /// the first try, and keeps it for the others.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if it is empty or longer.
    pub fn new(id: &str) -> Result<Self, LockError> {
        if id.is_empty() {
            let why = "it is empty; choose one for each operation, such as a UUID";
            return Err(LockError::invalid("operation id", id, why));
        }
        Ok(Self {
            id: short_enough("operation id", id)?,
            fingerprint: String::new(),
        })
    }

    /// Says what the operation is, in 255 bytes of text at most, such as a digest of the request. A later try with the same
    /// id and another fingerprint is refused ([`FenceError::AnotherOperation`]): somebody has used an id twice.
    ///
    /// # Errors
    /// [`fencelock_core::Error::Invalid`] if it is longer.
    pub fn fingerprint(self, of: &str) -> Result<Self, LockError> {
        let fingerprint = short_enough("fingerprint", of)?;
        Ok(Self {
            fingerprint,
            ..self
        })
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}

fn short_enough(what: &'static str, text: &str) -> Result<String, LockError> {
    if text.len() > LONGEST {
        let why = "it is longer than 255 bytes; send a digest of it";
        return Err(LockError::invalid(what, text, why));
    }
    Ok(text.to_owned())
}

/// A table of operations and their outcomes, beside a [`RowFence`](super::RowFence) or a
/// [`TableFence`](super::TableFence): a fence lets the same holder pass as often as it likes, so a request that is sent twice
/// would be carried out twice.
///
/// All in **one transaction**, which is rolled back if anything refuses:
///
/// 1. Run [`Operations::begin`]. A row inserted: this is the first try. Somebody else who begins the same operation waits
///    until this transaction ends.
/// 2. No row inserted: read [`Operations::select`], hand the row to [`Operations::outcome`], and answer with that. Nothing is
///    to be written, and no fence is asked: what was done was done, whoever holds the lock by now.
/// 3. The first try goes through the fence, writes, and runs [`Operations::finish`] with its outcome. Commit.
///
/// The driver helpers (`sqlite::begin`, which has an example, and `sqlite::finish`; and those of `postgres` and `mysql`) run
/// 1 to 2, and 3. An id counts for each lock by itself. Use `READ COMMITTED` in PostgreSQL, or be ready for serialization errors.
///
/// An outcome is kept until [`Operations::prune`] removes it: run that now and then, and keep outcomes for longer than any
/// client tries again. A try after that is a first try; then only the fence refuses it, if its holder was superseded.
#[derive(Clone, Debug)]
pub struct Operations {
    dialect: Dialect,
    table: String,
}

impl Operations {
    /// Operations in the table `fencelock_operations`.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let table = "fencelock_operations".to_owned();
        Self { dialect, table }
    }

    /// Operations in another table.
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
        // Names, ids and fingerprints are percent-encoded: three bytes for each at most.
        let (name, id, outcome, end) = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => ("TEXT", "TEXT", "TEXT", ")"),
            Dialect::Mysql => (
                "VARCHAR(1536) CHARACTER SET ascii COLLATE ascii_bin",
                "VARCHAR(765) CHARACTER SET ascii COLLATE ascii_bin",
                "LONGTEXT CHARACTER SET utf8mb4",
                // Or a pruning would lock every row that it looks at.
                ", INDEX (done_at)) ENGINE=InnoDB",
            ),
        };
        format!(
            "CREATE TABLE IF NOT EXISTS {} (name {name} NOT NULL, operation {id} NOT NULL, fingerprint {id} NOT NULL, \
             token BIGINT NOT NULL, done_at BIGINT NOT NULL, outcome {outcome}, PRIMARY KEY (name, operation){end}",
            self.table
        )
    }

    /// Begins an operation: inserts its row unless there is one, and waits while somebody else is at it.
    #[must_use]
    pub fn begin(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let (table, token, now) = (&self.table, sequencer.token, self.now());
        let (name, id) = (name_of(sequencer), encoded(&operation.id));
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

    /// Reads what was made of an operation, after an [`Operations::begin`] that inserted nothing.
    #[must_use]
    pub fn select(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let end = match self.dialect {
            Dialect::Postgres | Dialect::Sqlite => "",
            // The row as it is, and not as it was when the transaction began.
            Dialect::Mysql => " LOCK IN SHARE MODE",
        };
        let (table, which) = (&self.table, which(sequencer, operation));
        format!("SELECT {OPERATION_COLUMNS} FROM {table} WHERE {which}{end}")
    }

    /// The first try's outcome, from what [`Operations::select`] found.
    ///
    /// # Errors
    /// [`FenceError::AnotherOperation`] if the fingerprints differ, [`FenceError::Damaged`] if a transaction was committed
    /// without [`Operations::finish`], or nothing was found: it was pruned at that moment, or `begin` was not run.
    pub fn outcome(&self, found: Option<StoredOperation>, operation: &Operation) -> Result<String> {
        let resource = self.table.clone();
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
                "operation {id:?} was committed without an outcome; look whether it was carried out, and set its outcome, or \
                 delete its row"
            );
            FenceError::damaged(resource, why)
        })
    }

    /// Keeps the outcome of the operation that this transaction has begun. It has one placeholder, for the outcome: text
    /// that is enough to answer the same request again. One row must be changed.
    #[must_use]
    pub fn finish(&self, sequencer: &Sequencer, operation: &Operation) -> String {
        let placeholder = match self.dialect {
            Dialect::Postgres => "$1",
            Dialect::Sqlite | Dialect::Mysql => "?",
        };
        let (table, which) = (&self.table, which(sequencer, operation));
        format!("UPDATE {table} SET outcome = {placeholder} WHERE {which} AND outcome IS NULL")
    }

    /// Forgets the operations that were begun longer ago than that, by the database's clock.
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

    /// The table, for errors.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(super) fn failed(
        &self,
        action: &'static str,
        cause: impl Into<fencelock_core::Cause>,
    ) -> FenceError {
        FenceError::write(&self.table, action, cause)
    }

    /// Whether the outcome was kept, by how many rows [`Operations::finish`] changed.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    pub(super) fn finished(&self, changed: u64, operation: &Operation) -> Result<()> {
        if changed == 1 {
            return Ok(());
        }
        let id = &operation.id;
        let why = format!(
            "operation {id:?} was not begun in this transaction; roll back, and begin it first"
        );
        Err(FenceError::damaged(&self.table, why))
    }
}

fn which(sequencer: &Sequencer, operation: &Operation) -> String {
    let (name, id) = (name_of(sequencer), encoded(&operation.id));
    format!("name = '{name}' AND operation = '{id}'")
}

/// Letters, digits and `%` only, whatever the text is.
fn encoded(text: &str) -> impl Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}
