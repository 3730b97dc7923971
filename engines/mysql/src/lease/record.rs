//! The store's record.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_sql::server::Failure;

use super::connection::{Leases, Session, Tried};
use crate::record::{Row, read};

impl Leases {
    /// If the table is missing, the first change creates it.
    pub(super) async fn record_of(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Tried<Record> {
        let row = Row {
            table: &self.tables.record,
            strategy: None,
            scope,
        };
        match self.run(session, &row.request(change)).await {
            Err(Failure::NoTables(_)) if change.is_none() => Ok(Record::default()),
            answers => Ok(read(&answers?)),
        }
    }
}
