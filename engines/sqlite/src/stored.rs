//! The format of the file: its tables, its header, and how values are stored.

use std::time::Duration;

use fencelock_core::{BootInstant, ClaimId, Mode, Token};
use fencelock_sql::lease;
use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, Row};

pub(crate) type Sql<T> = rusqlite::Result<T>;

/// `fnlk`, in the header of the file.
pub(crate) const APPLICATION_ID: i64 = 0x666e_6c6b;
/// The version of the tables. A file with a newer one is refused.
pub(crate) const FORMAT: i64 = 1;

pub(crate) const SCHEMA: &str = include_str!("schema.sql");
/// Columns that format 1 did not have at first: table, name, type. Earlier versions of fencelock ignore them.
const ADDED_COLUMNS: [(&str, &str, &str); 6] = [
    ("holders", "run", "TEXT"),
    ("holders", "written", "INTEGER"),
    ("waiters", "label", "TEXT"),
    ("store", "horizon", "INTEGER"),
    ("store", "origin", "INTEGER"),
    ("store", "origin_boot", "TEXT"),
];

/// The header of the file, read in one snapshot.
pub(crate) struct Header {
    pub(crate) application: i64,
    pub(crate) format: i64,
    /// SQLite's counter of changes to the schema: 0 in an empty file.
    pub(crate) schema: i64,
}

pub(crate) fn header(connection: &Connection) -> Sql<Header> {
    let snapshot = connection.unchecked_transaction()?;
    Ok(Header {
        application: pragma(&snapshot, "application_id")?,
        format: pragma(&snapshot, "user_version")?,
        schema: pragma(&snapshot, "schema_version")?,
    })
}

pub(crate) fn format(connection: &Connection) -> Sql<i64> {
    pragma(connection, "user_version")
}

fn pragma(connection: &Connection, name: &str) -> Sql<i64> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

/// Creates the tables in an empty file, with `token` as the last one drawn.
pub(crate) fn create_tables(connection: &Connection, token: i64, boot: &str) -> Sql<()> {
    connection.execute_batch(SCHEMA)?;
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    connection.pragma_update(None, "user_version", FORMAT)?;
    let store = "INSERT INTO store (id, token, boot) VALUES (1, ?1, ?2)";
    connection.execute(store, (token, boot)).map(drop)
}

/// Whether the tables have [`ADDED_COLUMNS`].
pub(crate) fn has_all_columns(connection: &Connection) -> Sql<bool> {
    for (table, column, _) in ADDED_COLUMNS {
        if !has_column(connection, table, column)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a table of the file itself has this column.
pub(crate) fn has_column(connection: &Connection, table: &str, column: &str) -> Sql<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1, 'main') WHERE name = ?2)";
    connection.query_row(sql, [table, column], |row| row.get(0))
}

pub(crate) fn add_columns(connection: &Connection) -> Sql<()> {
    for (table, column, kind) in ADDED_COLUMNS {
        if !has_column(connection, table, column)? {
            connection.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {column} {kind}"))?;
        }
    }
    Ok(())
}

/// An instant that is too late for SQLite's integers is stored as the last one that fits.
pub(crate) fn instant_value(instant: BootInstant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

pub(crate) fn duration_value(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

pub(crate) fn token_value(token: Token) -> i64 {
    i64::try_from(token.get()).unwrap_or(i64::MAX)
}

pub(crate) fn claim_id(row: &Row<'_>, at: usize) -> Sql<ClaimId> {
    row.get(at).map(ClaimId::from_bytes)
}

pub(crate) fn instant(row: &Row<'_>, at: usize) -> Sql<BootInstant> {
    let nanos: i64 = row.get(at)?;
    Ok(BootInstant::from_nanos(nanos.unsigned_abs()))
}

pub(crate) fn duration(row: &Row<'_>, at: usize) -> Sql<Duration> {
    let nanos: i64 = row.get(at)?;
    Ok(Duration::from_nanos(nanos.unsigned_abs()))
}

pub(crate) fn token(row: &Row<'_>, at: usize) -> Sql<Token> {
    let token: i64 = row.get(at)?;
    Ok(Token(token.unsigned_abs()))
}

pub(crate) fn mode(row: &Row<'_>, at: usize) -> Sql<Mode> {
    let text = row.get_ref(at)?.as_str()?;
    lease::mode_from(text).ok_or_else(|| unreadable(at, FromSqlError::InvalidType))
}

/// An error for a stored text in a wrong format.
pub(crate) fn unreadable(
    at: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, Box::new(error))
}
