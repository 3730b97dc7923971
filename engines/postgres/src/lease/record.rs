//! The store's record.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_sql::record_action;
use fencelock_sql::server::Failure;

use super::connection::Leases;
use crate::connection::Session;
use crate::error::failure;
use crate::record::{OF_LEASES, record};

impl Leases {
    /// If the table is missing, the first change creates it.
    pub(super) async fn record_of(
        &self,
        session: &mut Session,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record, Failure> {
        let found = record(session, &OF_LEASES, scope, change).await;
        found.map_err(|error| failure(&self.hosts.config.store, record_action(change), error))
    }
}
