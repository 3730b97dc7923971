//! The store's record: a row of a table of its own.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_sql::server::Failure;

use super::connection::Leases;
use crate::connection::Session;

const READ: &str = "SELECT version, text FROM fencelock_record WHERE scope = $1";
const INSERT: &str =
    "INSERT INTO fencelock_record (scope, version, text) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING";
const UPDATE: &str = "UPDATE fencelock_record SET version = version + 1, text = $2 WHERE scope = $1 AND version = $3";

impl Leases {
    /// If the table is missing, the first change creates it.
    pub(super) async fn record_of(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record, Failure> {
        if let Some(RecordChange { from, text, .. }) = change {
            let from = i64::try_from(*from).unwrap_or(i64::MAX);
            let (action, text) = ("change the record", text.as_str());
            match from {
                0 => {
                    self.query(session, action, INSERT, &[&scope, &text])
                        .await?
                }
                _ => {
                    let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
                        &[&scope, &text, &from];
                    self.query(session, action, UPDATE, values).await?
                }
            };
        }
        let found = self
            .query(session, "read the record", READ, &[&scope])
            .await;
        let rows = match found {
            Err(Failure::NoTables(_)) if change.is_none() => return Ok(Record::default()),
            rows => rows?,
        };
        let found = rows.first().map(|row| {
            let version: i64 = row.get(0);
            Record::new(version.unsigned_abs(), row.get::<_, String>(1))
        });
        Ok(found.unwrap_or_default())
    }
}
