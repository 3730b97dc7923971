//! The kinds of databases.

/// The kind of database.
///
/// ```
/// # use fencelock_fence::sql::*;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let create = TableFence::new(Dialect::Sqlite).create();
/// assert!(create.starts_with("CREATE TABLE IF NOT EXISTS fencelock_fence"));
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
    /// SQLite 3.24 or later.
    Sqlite,
}

impl Dialect {
    /// The type of a column for text of up to `length` bytes in percent-encoding, which needs up to three bytes for
    /// each.
    pub(super) fn encoded_text(self, length: usize) -> String {
        match self {
            Self::Postgres | Self::Sqlite => "TEXT".to_owned(),
            Self::Mysql => format!(
                "VARCHAR({}) CHARACTER SET ascii COLLATE ascii_bin",
                3 * length
            ),
        }
    }

    /// The text that `CREATE TABLE` needs after the closing parenthesis.
    pub(super) fn table_options(self) -> &'static str {
        match self {
            Self::Postgres | Self::Sqlite => "",
            Self::Mysql => " ENGINE=InnoDB",
        }
    }
}
