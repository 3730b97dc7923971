//! Fences in a database: the marks are stored with the data, and the check is part of the statement, or of the
//! transaction, that writes.
//!
//! This module makes the text of the statements; any driver can run them. Tokens and claim ids are literals in it (they
//! have digits only), so they need no placeholder of a driver. There are two forms:
//!
//! * [`RowFence`]: three columns in the protected row, and one conditional `UPDATE`.
//! * [`TableFence`]: a table with a row for each lock, for transactions that write more than one row. The driver
//!   helpers (`sqlite::pass`, `postgres::pass`, `mysql::pass`) run it.
//!
//! A fence lets the same holder pass again, so a request that is sent twice is carried out twice. With [`Operations`] the
//! same transaction also stores the outcome of each operation, and the second request gets it.
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

mod dialect;
#[cfg(feature = "mysql")]
pub mod mysql;
mod operations;
#[cfg(feature = "postgres")]
pub mod postgres;
mod row_fence;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod stored_marks;
mod table;
mod table_fence;

pub use dialect::Dialect;
pub use operations::{OPERATION_COLUMNS, Operation, Operations, StoredOperation};
pub use row_fence::RowFence;
pub use stored_marks::{COLUMNS, StoredMarks};
pub use table_fence::TableFence;
