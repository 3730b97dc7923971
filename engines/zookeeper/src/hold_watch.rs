//! Watches on holds.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Event};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use zookeeper_client::Error as Refusal;

use crate::connection::{Connection, Session};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::state::State;
use crate::stored::ClaimData;

/// What a watched node showed.
enum Watched {
    Changed,
    Ended,
}

/// The task that watches holds.
pub(crate) async fn watch(
    state: Arc<State>,
    mut asked: mpsc::UnboundedReceiver<(Arc<Entry>, Arc<Connection>)>,
) {
    let mut watching = FuturesUnordered::new();
    let one = |entry: Arc<Entry>, connection: Arc<Connection>| {
        let state = Arc::clone(&state);
        async move {
            while matches!(
                state.watch_once(&entry, &connection).await,
                Ok(Watched::Changed)
            ) {}
            // So that it can be watched over the same connection again.
            let mut known = entry.known();
            if known.watched.ptr_eq(&Arc::downgrade(&connection)) {
                known.watched = std::sync::Weak::new();
            }
        }
    };
    loop {
        tokio::select! {
            more = asked.recv() => match more {
                Some((entry, connection)) => watching.push(one(entry, connection)),
                None => return,
            },
            Some(()) = watching.next(), if !watching.is_empty() => {}
        }
    }
}

impl State {
    /// A hold that others may want to join has its node watched from the beginning.
    pub(crate) fn watch_if_recorded(
        &self,
        entry: &Arc<Entry>,
        claim: &Claim,
        connection: &Arc<Connection>,
    ) {
        if claim.record {
            self.watch_hold(entry, connection);
        }
    }

    /// Has a hold's node watched, so that its holder hears at once when it is asked or evicted. Not before the first
    /// renewal unless others may want to join it: most holds are over by then, and those asked before hear of it then.
    pub(crate) fn watch_hold(&self, entry: &Arc<Entry>, connection: &Arc<Connection>) {
        let weak = Arc::downgrade(connection);
        let mut known = entry.known();
        if known.watched.ptr_eq(&weak) {
            return;
        }
        known.watched = weak;
        // The task ends with the engine.
        let _ = self
            .watch_requests
            .send((Arc::clone(entry), Arc::clone(connection)));
    }

    /// One look at a watched hold: tells what was done to it, and waits for the next change.
    async fn watch_once(
        &self,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
    ) -> Result<Watched, Failure> {
        let Some(node) = entry.known().node.clone() else {
            return Ok(Watched::Ended);
        };
        let path = entry.lock_node.child(&node.name);
        match connection
            .read(connection.client().get_and_watch_data(&path))
            .await
        {
            Ok((bytes, stat, watcher)) => {
                if let Some(Node { version, .. }) = &mut entry.known().node {
                    *version = stat.version;
                }
                self.note_written(entry, &bytes);
                self.answer_ping(entry, &bytes, stat.version).await?;
                // In this order: a watcher must not be asked once its connection is gone.
                tokio::select! {
                    biased;
                    () = connection.lost() => Ok(Watched::Ended),
                    _ = watcher.changed() => Ok(Watched::Changed),
                }
            }
            Err(Failure::Refused(Refusal::NoNode)) => {
                let (taken, moved) = {
                    let known = entry.known();
                    let same = known
                        .node
                        .as_ref()
                        .is_some_and(|known| known.name == node.name);
                    let held = known.held && !known.ended && !known.uncertain;
                    (held && same, held && known.node.is_some() && !same)
                };
                if taken {
                    let _ = self.events.send(Event::Lost(entry.id));
                }
                Ok(if moved {
                    Watched::Changed
                } else {
                    Watched::Ended
                })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Notes what others wrote into a hold's node.
    pub(crate) fn note_written(&self, entry: &Entry, bytes: &[u8]) {
        let Ok(data) = ClaimData::read(bytes) else {
            return;
        };
        let news = {
            let mut known = entry.known();
            let news = data.asked && !known.asked;
            known.asked |= data.asked;
            known.ping = data.ping;
            news
        };
        if news {
            // Nobody listens any more if the client is gone.
            let _ = self.events.send(Event::Asked(entry.id));
        }
    }

    /// Tells of the holds whose session the servers ended.
    pub(crate) fn report_expired(&self, session: &Arc<Session>) {
        let entries: Vec<_> = self.registry().entries.values().map(Arc::clone).collect();
        for entry in entries {
            let lost = {
                let known = entry.known();
                known.held && !known.ended && Arc::ptr_eq(&known.session, session)
            };
            if lost {
                let _ = self.events.send(Event::Lost(entry.id));
            }
        }
    }
}
