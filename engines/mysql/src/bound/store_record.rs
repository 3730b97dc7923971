//! The store's record, which has nothing to do with those of holds.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_sql::server::Failure;

use super::connection::{BoundLocks, Session};
use crate::record::{Row, read};
use crate::tables::Use;

impl BoundLocks {
    /// Where the table is missing, the first change creates it.
    pub(super) async fn record_of_store(
        &self,
        control: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record, Failure> {
        let row = Row {
            table: &self.tables.bound_record,
            strategy: Some(self.strategy()),
            scope,
        };
        match control.run_if_there(row.request(change)).await? {
            Some(answers) => Ok(read(&answers)),
            None if change.is_none() => Ok(Record::default()),
            None => {
                self.create_tables(control, Use::BoundRecord).await?;
                Ok(read(&control.run(row.request(change)).await?))
            }
        }
    }
}
