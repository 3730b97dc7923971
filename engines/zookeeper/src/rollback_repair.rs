//! What servers undid although they had acknowledged it, or forgot one by one.
//!
//! That must not happen, and does: when a leader changes, versions before 3.8.4 and 3.9.2 may go on without their latest
//! transactions (ZOOKEEPER-4785), and so does an ensemble that was restored from a backup. Then a node that was deleted
//! is there again, and stands in line for as long as its session lives, with nobody to delete it; or the node of a hold
//! is gone. Such a change breaks all connections. So whoever takes a session up again compares that session's nodes
//! with what it knows of them.
//!
//! Worse, a follower may have lost transactions that its leader has. Then its clients see a node that was deleted, and
//! no other client does; nor can anybody delete it, since the leader says that there is none. So whoever has waited for
//! long has the node before it made and deleted in one transaction. A leader that has the node refuses that; otherwise
//! the deletion reaches every server, and those that still have the node delete it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Clock;
use fencelock_core::engine::Event;
use futures_util::TryFutureExt;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zookeeper_client::{CreateMode, Error as Refusal};

use crate::names;
use crate::state::MAX_IN_FLIGHT;
use crate::{connection::Connection, error::Failure};
use crate::{entry::Entry, state::State};

/// Between attempts to compare over a connection whose server does not answer.
const PAUSE: Duration = Duration::from_millis(300);

/// The task that compares, over each connection that a session was taken up with.
pub(crate) async fn watch(
    state: Arc<State>,
    mut resumed: mpsc::UnboundedReceiver<Arc<Connection>>,
) {
    let mut comparing = JoinSet::new();
    loop {
        tokio::select! {
            connection = resumed.recv() => match connection {
                Some(connection) => {
                    let state = Arc::clone(&state);
                    comparing.spawn(async move {
                        while let Err(Failure::Unanswered(why)) = state.compare(&connection).await {
                            tracing::debug!(why, managed = connection.session.id, "not compared");
                            tokio::select! {
                                // Then another connection is compared.
                                () = connection.lost() => return,
                                () = tokio::time::sleep(PAUSE) => {}
                            }
                        }
                    });
                }
                None => return,
            },
            Some(_) = comparing.join_next() => {}
        }
    }
}

impl State {
    /// Deletes the nodes of this session that no claim knows, and tells of the holds whose nodes are gone.
    async fn compare(&self, connection: &Arc<Connection>) -> Result<(), Failure> {
        // Before it is asked for: what is made meanwhile need not be in the answer.
        let held = self.holds_of(connection);
        let sync = connection.client().sync(self.config.root_path());
        let list = connection.client().list_ephemerals(self.config.root_path());
        // Both are on their way before the first answer is awaited.
        let (synced, nodes) = tokio::join!(connection.read(sync), connection.read(list));
        synced?;
        let nodes: HashSet<_> = nodes?.into_iter().collect();
        for (entry, path) in held {
            if !nodes.contains(&path) && still_holds_by(&entry, &path) {
                // Nobody listens any more if the client is gone.
                let _ = self.events.send(Event::Lost(entry.id));
            }
        }
        let strange: Vec<_> = nodes.iter().filter(|path| self.is_unknown(path)).collect();
        for paths in strange.chunks(MAX_IN_FLIGHT) {
            let deleted = paths.iter().map(|path| async move {
                tracing::warn!(%path, "the servers undid a deletion that they had acknowledged; it is deleted again");
                let delete = connection.client().delete(path, None);
                connection.write(Clock::Boot.now(), delete).await
            });
            for deleted in join_all(deleted).await {
                match deleted {
                    Ok(()) | Err(Failure::Refused(_)) => {}
                    Err(silent) => return Err(silent),
                }
            }
        }
        Ok(())
    }

    /// Deletes those of these nodes that the leader does not know of.
    pub(crate) async fn delete_ghosts(
        &self,
        connection: &Connection,
        paths: &[String],
    ) -> Result<(), Failure> {
        let laid = paths.iter().map(|path| async move {
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = connection.client().new_multi_writer();
            let added = writer
                .add_create(path, b"", &options)
                .and_then(|()| writer.add_delete(path, None));
            added.map_err(Failure::Refused)?;
            let commit = writer.commit().map_err(Refusal::from);
            match connection.write(Clock::Boot.now(), commit).await {
                // A server that has the node says so also when the leader has not.
                Ok(_) | Err(Failure::Refused(_)) => Ok(()),
                Err(silent) => Err(silent),
            }
        });
        join_all(laid).await.into_iter().collect()
    }

    /// The holds of this connection's session, with the paths of their nodes.
    fn holds_of(&self, connection: &Connection) -> Vec<(Arc<Entry>, String)> {
        let entries: Vec<_> = self.registry().entries.values().map(Arc::clone).collect();
        let held = entries.into_iter().filter_map(|entry| {
            let path = {
                let known = entry.known();
                let here = known.held
                    && !known.uncertain
                    && Arc::ptr_eq(&known.session, &connection.session);
                let node = known.node.as_ref().filter(|_| here && !known.ended)?;
                entry.lock_node.child(&node.name)
            };
            Some((entry, path))
        });
        held.collect()
    }

    /// Whether this is a claim's node that no claim of this client knows. No two ever have the same path.
    fn is_unknown(&self, path: &str) -> bool {
        let node = path.rsplit('/').next().unwrap_or_default();
        let Some(entry) = names::claim(node).map(|id| self.entry(id)) else {
            return false;
        };
        let Some(entry) = entry else { return true };
        let known = entry.known();
        // One that was asked for without an answer may be any.
        let known = known.uncertain || known.node.as_ref().is_some_and(|known| known.name == node);
        !known
    }
}

/// Whether a claim still believes to hold by this node.
fn still_holds_by(entry: &Entry, path: &str) -> bool {
    let known = entry.known();
    let node = known
        .node
        .as_ref()
        .filter(|_| !known.ended && !known.uncertain);
    node.is_some_and(|node| entry.lock_node.child(&node.name) == path)
}
