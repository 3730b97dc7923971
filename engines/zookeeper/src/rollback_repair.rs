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
use crate::state::AT_ONCE;
use crate::{connection::Link, error::Trouble};
use crate::{entry::Spot, state::Store};

/// Between attempts to compare over a connection whose server does not answer.
const PAUSE: Duration = Duration::from_millis(300);

/// The task that compares, over each connection that a session was taken up with.
pub(crate) async fn watch(store: Arc<Store>, mut resumed: mpsc::UnboundedReceiver<Arc<Link>>) {
    let mut comparing = JoinSet::new();
    loop {
        tokio::select! {
            link = resumed.recv() => match link {
                Some(link) => {
                    let store = Arc::clone(&store);
                    comparing.spawn(async move {
                        while let Err(Trouble::Silent(why)) = store.compare(&link).await {
                            tracing::debug!(why, session = link.life.id, "not compared");
                            tokio::select! {
                                // Then another connection is compared.
                                () = link.ended() => return,
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

impl Store {
    /// Deletes the nodes of this session that no claim knows, and tells of the holds whose nodes are gone.
    async fn compare(&self, link: &Arc<Link>) -> Result<(), Trouble> {
        // Before it is asked for: what is made meanwhile need not be in the answer.
        let held = self.held_over(link);
        let sync = link.client().sync(self.config.root_path());
        let list = link.client().list_ephemerals(self.config.root_path());
        // Both are on their way before the first answer is awaited.
        let (synced, nodes) = tokio::join!(link.read(sync), link.read(list));
        synced?;
        let nodes: HashSet<_> = nodes?.into_iter().collect();
        for (spot, path) in held {
            if !nodes.contains(&path) && stands_at(&spot, &path) {
                // Nobody listens any more if the client is gone.
                let _ = self.tell.send(Event::Lost(spot.id));
            }
        }
        let strange: Vec<_> = nodes.iter().filter(|path| self.is_strange(path)).collect();
        for paths in strange.chunks(AT_ONCE) {
            let deleted = paths.iter().map(|path| async move {
                tracing::warn!(%path, "the servers undid a deletion that they had acknowledged; it is deleted again");
                let delete = link.client().delete(path, None);
                link.write(Clock::Boot.now(), delete).await
            });
            for deleted in join_all(deleted).await {
                match deleted {
                    Ok(()) | Err(Trouble::Answered(_)) => {}
                    Err(silent) => return Err(silent),
                }
            }
        }
        Ok(())
    }

    /// Deletes those of these nodes that the leader does not know of.
    pub(crate) async fn lay(&self, link: &Link, paths: &[String]) -> Result<(), Trouble> {
        let laid = paths.iter().map(|path| async move {
            let options = CreateMode::Ephemeral.with_acls(self.config.acls());
            let mut writer = link.client().new_multi_writer();
            let added = writer
                .add_create(path, b"", &options)
                .and_then(|()| writer.add_delete(path, None));
            added.map_err(Trouble::Answered)?;
            let commit = writer.commit().map_err(Refusal::from);
            match link.write(Clock::Boot.now(), commit).await {
                // A server that has the node says so also when the leader has not.
                Ok(_) | Err(Trouble::Answered(_)) => Ok(()),
                Err(silent) => Err(silent),
            }
        });
        join_all(laid).await.into_iter().collect()
    }

    /// The holds of this connection's session, with the paths of their nodes.
    fn held_over(&self, link: &Link) -> Vec<(Arc<Spot>, String)> {
        let spots: Vec<_> = self.state().spots.values().map(Arc::clone).collect();
        let held = spots.into_iter().filter_map(|spot| {
            let path = {
                let now = spot.now();
                let here = now.held && !now.unsure && Arc::ptr_eq(&now.life, &link.life);
                let node = now.node.as_ref().filter(|_| here && !now.over)?;
                spot.above.below(&node.name)
            };
            Some((spot, path))
        });
        held.collect()
    }

    /// Whether this is a claim's node that no claim of this client knows. No two ever have the same path.
    fn is_strange(&self, path: &str) -> bool {
        let node = path.rsplit('/').next().unwrap_or_default();
        let Some(spot) = names::claim(node).map(|id| self.spot(id)) else {
            return false;
        };
        let Some(spot) = spot else { return true };
        let now = spot.now();
        // One that was asked for without an answer may be any.
        let known = now.unsure || now.node.as_ref().is_some_and(|known| known.name == node);
        !known
    }
}

/// Whether a claim still believes to hold by this node.
fn stands_at(spot: &Spot, path: &str) -> bool {
    let now = spot.now();
    let node = now.node.as_ref().filter(|_| !now.over && !now.unsure);
    node.is_some_and(|node| spot.above.below(&node.name) == path)
}
