//! The store's record: a node for each scope. Its version is one more than that of the node's data.

use fencelock_core::engine::{Record, RecordChange};
use fencelock_core::support::inspect_only;
use fencelock_core::{Clock, Result};
use zookeeper_client::{CreateMode, Error as Refusal};

use crate::connection::Connection;
use crate::error::Failure;
use crate::names::record_node;
use crate::state::State;

impl State {
    pub(crate) async fn record(
        &self,
        scope: &str,
        change: Option<&RecordChange>,
    ) -> Result<Record> {
        let action = match change {
            None => "reading the record",
            Some(_) if self.config.inspect_only => {
                return Err(inspect_only(&self.config.store, "changing the record"));
            }
            Some(_) => "changing the record",
        };
        let failure = |failure| self.error(action, failure);
        let connection = self.sessions.waiting.connection().await.map_err(failure)?;
        let path = format!("{}/{}", self.config.root, record_node(scope));
        if let Some(change) = change {
            let changed = self.change_record(&connection, &path, change).await;
            changed.map_err(failure)?;
        }
        let sync = connection.client().sync(self.config.root_path());
        let read = connection.client().get_data(&path);
        let (synced, read) = tokio::join!(connection.read(sync), connection.read(read));
        // A refusal may mean that there is no chroot.
        if let Err(unanswered @ Failure::Unanswered(_)) = synced {
            return Err(failure(unanswered));
        }
        match read {
            Ok((data, stat)) => {
                let version = u64::from(stat.version.unsigned_abs()) + 1;
                Ok(Record::new(version, String::from_utf8_lossy(&data)))
            }
            Err(Failure::Refused(Refusal::NoNode)) => Ok(Record::default()),
            Err(other) => Err(failure(other)),
        }
    }

    /// Writes the record unless others have changed it since.
    async fn change_record(
        &self,
        connection: &Connection,
        path: &str,
        RecordChange { from, text, .. }: &RecordChange,
    ) -> Result<(), Failure> {
        let (client, sent) = (connection.client(), Clock::Boot.now());
        let version = from.checked_sub(1).map(i32::try_from);
        let changed = match version {
            None => {
                let options = CreateMode::Persistent.with_acls(self.config.acls());
                let create = client.create(path, text.as_bytes(), &options);
                connection.write(sent, create).await.map(drop)
            }
            Some(Ok(version)) => {
                let set = client.set_data(path, text.as_bytes(), Some(version));
                connection.write(sent, set).await.map(drop)
            }
            // The wanted version is one that no node can have.
            Some(Err(_)) => return Ok(()),
        };
        match changed {
            Err(Failure::Refused(Refusal::NodeExists | Refusal::BadVersion | Refusal::NoNode)) => {
                Ok(())
            }
            changed => changed,
        }
    }
}
