//! The store's record: a row of a table that is made with the first record.

use fencelock_core::Result;
use fencelock_core::engine::{Record, RecordChange};
use rusqlite::{OptionalExtension, params};

use crate::handle::{Handle, How};
use crate::job::Action;
use crate::stored::Sql;
use crate::transaction::Transaction;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS record (
    scope TEXT PRIMARY KEY,   -- the prefix before all names
    version INTEGER NOT NULL,
    text TEXT NOT NULL
) STRICT, WITHOUT ROWID";

pub(crate) async fn record(
    worker: &Handle,
    scope: &str,
    change: Option<&RecordChange>,
) -> Result<Record> {
    let scope = scope.to_owned();
    let Some(change) = change.cloned() else {
        let action = Action::Other("reading the record");
        return worker
            .run(How::Read, action, move |transaction| {
                read(transaction, &scope)
            })
            .await;
    };
    let action = Action::Other("changing the record");
    worker
        .run(How::Write, action, move |transaction| {
            write(transaction, &scope, &change)?;
            read(transaction, &scope)
        })
        .await
}

fn read(transaction: &Transaction<'_>, scope: &str) -> Sql<Record> {
    let exists =
        "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'record')";
    let exists: bool = transaction
        .connection
        .query_row(exists, [], |row| row.get(0))?;
    if !exists {
        return Ok(Record::default());
    }
    let sql = "SELECT version, text FROM record WHERE scope = ?1";
    let mut select = transaction.connection.prepare_cached(sql)?;
    let found = select.query_row([scope], |row| {
        let (version, text): (i64, String) = (row.get(0)?, row.get(1)?);
        Ok(Record::new(version.unsigned_abs(), text))
    });
    Ok(found.optional()?.unwrap_or_default())
}

fn write(transaction: &Transaction<'_>, scope: &str, change: &RecordChange) -> Sql<()> {
    let from = i64::try_from(change.from).unwrap_or(i64::MAX);
    match from {
        0 => {
            transaction.execute(TABLE, [])?;
            let sql = "INSERT INTO record (scope, version, text) VALUES (?1, 1, ?2) ON CONFLICT DO NOTHING";
            transaction.execute(sql, params![scope, change.text])
        }
        _ => {
            let sql = "UPDATE record SET version = version + 1, text = ?2 WHERE scope = ?1 AND version = ?3";
            transaction.execute(sql, params![scope, change.text, from])
        }
    }
}
