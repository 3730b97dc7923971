//! The store's record: a row of a table of its own.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_sql::server::Failure;

use super::connection::{Leases, Session, Tried};
use crate::request::{Request, bytes};

impl Leases {
    /// If the table is missing, the first change creates it.
    pub(super) async fn record_of(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Tried<Record> {
        let (table, scope) = (&self.tables.record, bytes(scope.as_bytes()));
        let mut request = Request::default();
        if let Some(RecordChange { from, text, .. }) = change {
            let text = bytes(text.as_bytes());
            request.push(match from {
                0 => format!("INSERT IGNORE INTO {table} (scope, version, text) VALUES ({scope}, 1, {text})"),
                from => format!(
                    "UPDATE {table} SET version = version + 1, text = {text} WHERE scope = {scope} AND version = {from}"
                ),
            });
        }
        let place = request.push(format!(
            "SELECT version, text FROM {table} WHERE scope = {scope}"
        ));
        let answers = match self.run(session, &request).await {
            Err(Failure::NoTables(_)) if change.is_none() => return Ok(Record::default()),
            answers => answers?,
        };
        let found = answers[place].rows.first().and_then(|row| {
            let text: Vec<u8> = row.get(1)?;
            Some(Record::new(row.get(0)?, String::from_utf8(text).ok()?))
        });
        Ok(found.unwrap_or_default())
    }
}
