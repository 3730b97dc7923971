//! Repairs what servers rolled back although they had acknowledged it, and what single servers forgot.
//!
//! Rollbacks must not happen, but they do. When the leader changes, versions before 3.8.4 and 3.9.2 may continue without their
//! latest transactions (ZOOKEEPER-4785). An ensemble that was restored from a backup does so, too. Then a deleted node may exist
//! again. It stays in the queue for as long as its session lives, because no client deletes it. Or the node of a hold is gone.
//! Every rollback breaks all connections. So after each resumption of a session, the client compares the session's nodes with
//! its entries.
//!
//! Worse, a follower may have lost transactions that the leader has. Then the follower's clients see a deleted node (a
//! ghost), and no other client does. Nobody can delete it, because the leader answers that it does not exist. So a claim
//! that has waited for long creates and deletes the node before its own in one transaction. If the leader has that node,
//! it refuses. If not, the deletion reaches every server, and those that still have the node delete it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Clock;
use fencelock_core::engine::{Event, LeaseKind};
use futures_util::TryFutureExt;
use futures_util::future::join_all;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zookeeper_client::{CreateMode, Error as Refusal};

use crate::connection::Connection;
use crate::entry::Entry;
use crate::error::Failure;
use crate::names;
use crate::session::SessionEvent;
use crate::state::{MAX_IN_FLIGHT, State};

/// The pause between attempts to compare over a connection whose server does not answer.
const PAUSE: Duration = Duration::from_millis(300);

/// The task that reacts to the expiry and the resumption of sessions.
pub(crate) async fn watch_sessions(
    state: Arc<State>,
    mut events: mpsc::UnboundedReceiver<SessionEvent>,
) {
    let mut comparing = JoinSet::new();
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(SessionEvent::Expired(session)) => state.report_expired(&session),
                Some(SessionEvent::Resumed(connection)) => {
                    comparing.spawn(compare(Arc::clone(&state), connection));
                }
                None => return,
            },
            Some(_) = comparing.join_next() => {}
        }
    }
}

/// Compares until it succeeds or the connection is lost. The next connection is compared, too.
async fn compare(state: Arc<State>, connection: Arc<Connection>) {
    while let Err(Failure::Unanswered(why)) = state.compare_once(&connection).await {
        tracing::debug!(why, session = connection.session.id, "nodes not compared");
        tokio::select! {
            () = connection.lost() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

impl State {
    /// Deletes the nodes of this session that belong to no entry, and reports holds whose nodes are gone as lost.
    async fn compare_once(&self, connection: &Arc<Connection>) -> Result<(), Failure> {
        // Before the request: a node that is created later need not be in the reply.
        let holds = self.holds_of(connection);
        let sync = connection.client().sync(self.config.root_path());
        let list = connection.client().list_ephemerals(self.config.root_path());
        // Both requests are sent before the first reply is awaited.
        let (synced, nodes) = tokio::join!(connection.read(sync), connection.read(list));
        synced?;
        let nodes: HashSet<_> = nodes?.into_iter().collect();
        for (entry, path) in holds {
            if !nodes.contains(&path) && still_holds_by(&entry, &path, connection) {
                // The servers do not say who removed the node, or that they rolled it back.
                let gone = Event::Ended(entry.id, LeaseKind::Lease);
                self.events.tell(gone);
            }
        }
        let unknown: Vec<_> = nodes.iter().filter(|path| self.is_unknown(path)).collect();
        for paths in unknown.chunks(MAX_IN_FLIGHT) {
            let deleted = paths.iter().map(|path| async move {
                tracing::warn!(%path, "the servers rolled back a deletion that they had acknowledged; deleting the node again");
                let delete = connection.client().delete(path, None);
                connection.write(Clock::Boot.now(), delete).await
            });
            all_answered(join_all(deleted).await)?;
        }
        Ok(())
    }

    /// Deletes those of these nodes that the leader does not have.
    pub(crate) async fn delete_ghosts(
        &self,
        connection: &Connection,
        paths: &[String],
    ) -> Result<(), Failure> {
        let deleted = paths.iter().map(|path| async move {
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = connection.client().new_multi_writer();
            let added = writer
                .add_create(path, b"", &options)
                .and_then(|()| writer.add_delete(path, None));
            added.map_err(Failure::Refused)?;
            let commit = writer.commit().map_err(Refusal::from);
            connection.write(Clock::Boot.now(), commit).await
        });
        // A refusal proves nothing: a server that has the node may refuse although the leader does not have it.
        all_answered(join_all(deleted).await)
    }

    /// The holds of this connection's session, with the paths of their nodes.
    fn holds_of(&self, connection: &Connection) -> Vec<(Arc<Entry>, String)> {
        let held = self.entries().into_iter().filter_map(|entry| {
            let path = {
                let known = entry.known.lock();
                let here = Arc::ptr_eq(&known.session, &connection.session);
                let held = known.held && !known.uncertain && !known.ended;
                let node = known.node.as_ref().filter(|_| here && held)?;
                entry.lock_node.child(&node.name)
            };
            Some((entry, path))
        });
        held.collect()
    }

    /// Whether this is a claim's node that belongs to no entry of this client. No two claims ever have the same path.
    fn is_unknown(&self, path: &str) -> bool {
        let node = path.rsplit('/').next().unwrap_or_default();
        let Some(id) = names::claim_id(node) else {
            return false;
        };
        let Some(entry) = self.entry(id) else {
            return true;
        };
        let known = entry.known.lock();
        // An uncertain entry may have created any node of its claim.
        let is_known = known.uncertain || known.node.as_ref().is_some_and(|own| own.name == node);
        !is_known
    }
}

/// The first failure without a reply. A refusal is a reply.
fn all_answered<T>(replies: Vec<Result<T, Failure>>) -> Result<(), Failure> {
    let unanswered = |reply| match reply {
        Ok(_) | Err(Failure::Refused(_)) => None,
        Err(unanswered) => Some(unanswered),
    };
    replies.into_iter().find_map(unanswered).map_or(Ok(()), Err)
}

/// Whether a claim still holds by this node in this session, as far as this client knows. A renewal may have moved the node to
/// another session meanwhile, under the same name.
fn still_holds_by(entry: &Entry, path: &str, connection: &Connection) -> bool {
    let known = entry.known.lock();
    if !Arc::ptr_eq(&known.session, &connection.session) {
        return false;
    }
    let node = known
        .node
        .as_ref()
        .filter(|_| !known.ended && !known.uncertain);
    node.is_some_and(|node| entry.lock_node.child(&node.name) == path)
}
