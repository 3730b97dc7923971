//! Watches on holds.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Event};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use zookeeper_client::Error as Refusal;

use crate::connection::{Life, Link};
use crate::entry::{Node, Spot};
use crate::error::Trouble;
use crate::state::Store;
use crate::stored::Data;

/// What a watched node showed.
enum Seen {
    Changed,
    Over,
}

/// The task that watches holds.
pub(crate) async fn watch(
    store: Arc<Store>,
    mut asked: mpsc::UnboundedReceiver<(Arc<Spot>, Arc<Link>)>,
) {
    let mut watching = FuturesUnordered::new();
    let one = |spot: Arc<Spot>, link: Arc<Link>| {
        let store = Arc::clone(&store);
        async move {
            while matches!(store.watch_once(&spot, &link).await, Ok(Seen::Changed)) {}
            // So that it can be watched over the same connection again.
            let mut now = spot.now();
            if now.watched.ptr_eq(&Arc::downgrade(&link)) {
                now.watched = std::sync::Weak::new();
            }
        }
    };
    loop {
        tokio::select! {
            more = asked.recv() => match more {
                Some((spot, link)) => watching.push(one(spot, link)),
                None => return,
            },
            Some(()) = watching.next(), if !watching.is_empty() => {}
        }
    }
}

impl Store {
    /// A hold that others may want to join has its node watched from the beginning.
    pub(crate) fn arm_if_recorded(&self, spot: &Arc<Spot>, claim: &Claim, link: &Arc<Link>) {
        if claim.record {
            self.arm(spot, link);
        }
    }

    /// Has a hold's node watched, so that its holder hears at once when it is asked or evicted. Not before the first
    /// renewal unless others may want to join it: most holds are over by then, and those asked before hear of it then.
    pub(crate) fn arm(&self, spot: &Arc<Spot>, link: &Arc<Link>) {
        let weak = Arc::downgrade(link);
        let mut now = spot.now();
        if now.watched.ptr_eq(&weak) {
            return;
        }
        now.watched = weak;
        // The task ends with the engine.
        let _ = self.watch.send((Arc::clone(spot), Arc::clone(link)));
    }

    /// One look at a watched hold: tells what was done to it, and waits for the next change.
    async fn watch_once(&self, spot: &Arc<Spot>, link: &Arc<Link>) -> Result<Seen, Trouble> {
        let Some(node) = spot.now().node.clone() else {
            return Ok(Seen::Over);
        };
        let path = spot.above.below(&node.name);
        match link.read(link.client().get_and_watch_data(&path)).await {
            Ok((bytes, stat, watcher)) => {
                if let Some(Node { version, .. }) = &mut spot.now().node {
                    *version = stat.version;
                }
                self.note_written(spot, &bytes);
                self.answer(spot, &bytes, stat.version).await?;
                // In this order: a watcher must not be asked once its connection is gone.
                tokio::select! {
                    biased;
                    () = link.ended() => Ok(Seen::Over),
                    _ = watcher.changed() => Ok(Seen::Changed),
                }
            }
            Err(Trouble::Answered(Refusal::NoNode)) => {
                let (taken, moved) = {
                    let now = spot.now();
                    let same = now.node.as_ref().is_some_and(|now| now.name == node.name);
                    let held = now.held && !now.over && !now.unsure;
                    (held && same, held && now.node.is_some() && !same)
                };
                if taken {
                    let _ = self.tell.send(Event::Lost(spot.id));
                }
                Ok(if moved { Seen::Changed } else { Seen::Over })
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Notes what others wrote into a hold's node.
    pub(crate) fn note_written(&self, spot: &Spot, bytes: &[u8]) {
        let Ok(data) = Data::read(bytes) else { return };
        let news = {
            let mut now = spot.now();
            let news = data.asked && !now.asked;
            now.asked |= data.asked;
            now.ping = data.ping;
            news
        };
        if news {
            // Nobody listens any more if the client is gone.
            let _ = self.tell.send(Event::Asked(spot.id));
        }
    }

    /// Tells of the holds whose session the servers ended.
    pub(crate) fn tell_of(&self, life: &Arc<Life>) {
        let spots: Vec<_> = self.state().spots.values().map(Arc::clone).collect();
        for spot in spots {
            let lost = {
                let now = spot.now();
                now.held && !now.over && Arc::ptr_eq(&now.life, life)
            };
            if lost {
                let _ = self.tell.send(Event::Lost(spot.id));
            }
        }
    }
}
