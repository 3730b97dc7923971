//! The store's record: a row of a table of its own. The strategies are different stores in one database, so each has its own.

use fencelock_core::engine::{Record, RecordChange};

use super::connection::{Session, Values};
use super::error::is_missing;

/// The statements of one strategy.
pub(super) struct Statements {
    read: &'static str,
    insert: &'static str,
    update: &'static str,
}

/// A change waits until it is on the disk, and until those standbys have it that the database's settings name. It does so even
/// if other commits of the connection do not wait.
macro_rules! statements {
    ($table:literal, $columns:literal, $values:literal, $row:literal) => {
        Statements {
            read: concat!("SELECT version, text FROM ", $table, " WHERE ", $row),
            insert: concat!(
                durably!(),
                "INSERT INTO ",
                $table,
                " (",
                $columns,
                ", version, text) ",
                "SELECT ",
                $values,
                ", 1, $2::text FROM durable ON CONFLICT DO NOTHING"
            ),
            update: concat!(
                durably!(),
                "UPDATE ",
                $table,
                " SET version = version + 1, text = $2 FROM durable WHERE ",
                $row,
                " AND version = $3"
            ),
        }
    };
}
macro_rules! durably {
    () => {
        "WITH durable AS MATERIALIZED (SELECT set_config('synchronous_commit', \
            CASE WHEN reset_val = 'off' THEN 'on' ELSE reset_val END, true) \
            FROM pg_settings WHERE name = 'synchronous_commit') "
    };
}

pub(super) const OF_LEASES: Statements =
    statements!("fencelock_record", "scope", "$1::text", "scope = $1");
pub(super) const OF_ADVISORY: Statements = statements!(
    "fencelock_bound_record",
    "strategy, scope",
    "'advisory', $1::text",
    "strategy = 'advisory' AND scope = $1"
);

/// Makes the change, if there is one, and returns the record. Without the table there is none.
pub(super) async fn record(
    session: &mut Session,
    statements: &Statements,
    scope: &str,
    change: Option<&RecordChange>,
) -> Result<Record, tokio_postgres::Error> {
    if let Some(RecordChange { from, text, .. }) = change {
        let (from, text) = (i64::try_from(*from).unwrap_or(i64::MAX), text.as_str());
        let values: Values<'_> = &[&scope, &text, &from];
        match from {
            0 => session.try_query(statements.insert, &values[..2]).await?,
            _ => session.try_query(statements.update, values).await?,
        };
    }
    let rows = match session.try_query(statements.read, &[&scope]).await {
        Err(error) if change.is_none() && is_missing(&error) => return Ok(Record::default()),
        rows => rows?,
    };
    let found = rows.first().map(|row| {
        let version: i64 = row.get(0);
        Record::new(version.unsigned_abs(), row.get::<_, String>(1))
    });
    Ok(found.unwrap_or_default())
}
