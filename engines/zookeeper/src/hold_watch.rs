//! Watches on the nodes of holds: a holder learns at once when it is asked for the lock, evicted, or pinged.

use std::sync::{Arc, Weak};

use fencelock_core::engine::{Claim, Event, LeaseKind};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use zookeeper_client::Error as Refusal;

use crate::connection::{Connection, Session};
use crate::entry::{Entry, Node};
use crate::error::Failure;
use crate::state::State;
use crate::stored::ClaimData;

enum Watched {
    Changed,
    /// Nothing is left to watch over this connection.
    Ended,
}

/// The task that watches holds.
pub(crate) async fn watch_holds(
    state: Arc<State>,
    mut requests: mpsc::UnboundedReceiver<(Arc<Entry>, Arc<Connection>)>,
) {
    let mut watching = FuturesUnordered::new();
    let watch_one = |entry: Arc<Entry>, connection: Arc<Connection>| {
        let state = Arc::clone(&state);
        async move {
            let changed = async || {
                let watched = state.watch_once(&entry, &connection).await;
                matches!(watched, Ok(Watched::Changed))
            };
            while changed().await {}
            // The node may be watched over the same connection again.
            let mut known = entry.known.lock();
            if known.watched.ptr_eq(&Arc::downgrade(&connection)) {
                known.watched = Weak::new();
            }
        }
    };
    loop {
        tokio::select! {
            request = requests.recv() => match request {
                Some((entry, connection)) => watching.push(watch_one(entry, connection)),
                None => return,
            },
            Some(()) = watching.next(), if !watching.is_empty() => {}
        }
    }
}

impl State {
    /// Watches a hold from its grant on if other processes may join it.
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

    /// Watches a hold's node, unless it is watched over this connection already. If other processes may not join the hold, the
    /// watch begins with its first renewal, because most holds have ended by then. If somebody asked for the lock before, the
    /// holder learns of that with this renewal.
    pub(crate) fn watch_hold(&self, entry: &Arc<Entry>, connection: &Arc<Connection>) {
        let weak = Arc::downgrade(connection);
        let mut known = entry.known.lock();
        if known.watched.ptr_eq(&weak) {
            return;
        }
        known.watched = weak;
        let request = (Arc::clone(entry), Arc::clone(connection));
        // Sending fails if the engine is gone.
        let _ = self.watch_requests.send(request);
    }

    /// Reads a hold's node, reacts to what other clients wrote, and waits for the next change.
    async fn watch_once(
        &self,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
    ) -> Result<Watched, Failure> {
        let Some(node) = entry.known.lock().node.clone() else {
            return Ok(Watched::Ended);
        };
        let path = entry.lock_node.child(&node.name);
        let get = connection.client().get_and_watch_data(&path);
        let (bytes, stat, watcher) = match connection.read(get).await {
            Ok(read) => read,
            Err(Failure::Refused(Refusal::NoNode)) => return Ok(self.note_gone(entry, &node)),
            Err(failure) => return Err(failure),
        };
        if let Some(node) = &mut entry.known.lock().node {
            node.version = stat.version;
        }
        self.note_written(entry, &bytes);
        self.answer_ping(entry, &bytes, stat.version).await?;
        let changed = connection.unless_lost(watcher.changed()).await;
        Ok(changed.map_or(Watched::Ended, |_| Watched::Changed))
    }

    /// Reports a loss if this node of a hold is gone and was not replaced.
    fn note_gone(&self, entry: &Entry, node: &Node) -> Watched {
        let (lost, replaced) = {
            let known = entry.known.lock();
            let present = known.node.as_ref();
            let same = present.is_some_and(|present| present.name == node.name);
            let held = known.held && !known.ended && !known.uncertain;
            (held && same, held && present.is_some() && !same)
        };
        if lost {
            self.events.tell(Event::Lost(entry.id));
        }
        match replaced {
            true => Watched::Changed,
            false => Watched::Ended,
        }
    }

    /// Notes what other clients wrote into a hold's node.
    pub(crate) fn note_written(&self, entry: &Entry, bytes: &[u8]) {
        let Ok(data) = ClaimData::read(bytes) else {
            return;
        };
        let newly_asked = {
            let mut known = entry.known.lock();
            let newly_asked = data.asked && !known.asked;
            known.asked |= data.asked;
            known.ping = data.ping;
            newly_asked
        };
        if newly_asked {
            self.events.tell(Event::Asked(entry.id));
        }
    }

    /// Reports the holds of a session that the servers expired as lost.
    pub(crate) fn report_expired(&self, session: &Arc<Session>) {
        for entry in self.entries() {
            let lost = {
                let known = entry.known.lock();
                known.held && !known.ended && Arc::ptr_eq(&known.session, session)
            };
            if lost {
                let ended = Event::Ended(entry.id, LeaseKind::Session);
                self.events.tell(ended);
            }
        }
    }
}
