//! Ends.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, LockName};
use futures_util::future::join_all;

use crate::entry::Entry;
use crate::lock_node::{LOCK_NODE_DATA, LockNodeUse};
use crate::state::{MAX_IN_FLIGHT, State};

/// For how long the node of a name is kept when nobody of this client uses it.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// How often idle nodes are looked for.
const REAP_INTERVAL: Duration = Duration::from_millis(300);

/// The task that tidies up.
pub(crate) async fn reap(state: Arc<State>) {
    loop {
        let next = state.reap().await;
        let work = state.reap_due.notified();
        match next {
            Some(next) => {
                let pause = next.since(Clock::Boot.now()).min(REAP_INTERVAL);
                let pause = pause.max(Duration::from_millis(1));
                // Whichever comes first.
                drop(tokio::time::timeout(pause, work).await);
            }
            None => work.await,
        }
    }
}

impl State {
    /// Ends holds whose time is over, and deletes the nodes of names that nobody uses. Says when to come again.
    async fn reap(&self) -> Option<BootInstant> {
        let expired = self.take_expired();
        let ended = expired.iter().map(|entry| async move {
            let uncertain = entry.known().uncertain;
            let settled = match uncertain {
                true => self.settle(entry).await,
                false => Ok(()),
            };
            if settled.is_ok() && self.delete_node(entry).await.is_ok() {
                return self.remove(entry);
            }
            // Again soon.
            let soon = Clock::Boot.now() + REAP_INTERVAL;
            self.registry().deadlines.push(Reverse((soon, entry.id)));
        });
        join_all(ended).await;
        self.delete_idle_lock_nodes(IDLE_TIME).await;
        let mut registry = self.registry();
        let end = registry.deadlines.peek().map(|Reverse((at, _))| *at);
        let idle = registry.lock_nodes.values().any(|parent| parent.uses == 0);
        let soon = idle.then(|| Clock::Boot.now() + REAP_INTERVAL);
        let next = end.into_iter().chain(soon).min();
        registry.reap_scheduled = next.is_some();
        next
    }

    /// The holds whose time is over, no more than can be asked for at once.
    fn take_expired(&self) -> Vec<Arc<Entry>> {
        let now = Clock::Boot.now();
        let mut expired = Vec::new();
        let mut registry = self.registry();
        while let Some(Reverse((at, id))) = registry.deadlines.peek().copied() {
            if at > now || expired.len() >= MAX_IN_FLIGHT {
                break;
            }
            registry.deadlines.pop();
            let Some(entry) = registry.entries.get(&id).map(Arc::clone) else {
                continue;
            };
            let ends_at = {
                let mut known = entry.known();
                known.ended |= known.ends_at <= now;
                known.ends_at
            };
            if ends_at > now {
                // Prolonged meanwhile.
                registry.deadlines.push(Reverse((ends_at, id)));
            } else {
                expired.push(entry);
            }
        }
        expired
    }

    /// Deletes the nodes of names that this client has not used for so long. Others may still use them; then they stay, as
    /// those do that another library made to stay.
    pub(crate) async fn delete_idle_lock_nodes(&self, idle: Duration) {
        let now = Clock::Boot.now();
        let names: Vec<_> = {
            let mut registry = self.registry();
            let unused = |_: &LockName, parent: &mut LockNodeUse| {
                parent.uses == 0 && now.since(parent.idle_since) >= idle
            };
            let unused = registry.lock_nodes.extract_if(unused);
            unused.map(|(name, parent)| (name, parent.ours)).collect()
        };
        for names in names.chunks(MAX_IN_FLIGHT) {
            let Ok(connection) = self.waiting_session.connection().await else {
                // The servers delete them themselves in the end: they are containers.
                return;
            };
            let deleted = names.iter().map(|(name, ours)| {
                let (path, connection) = (self.lock_node_path(name), &connection);
                async move {
                    if !ours {
                        let found = connection.read(connection.client().get_data(&path)).await;
                        if !found.is_ok_and(|(data, _)| data == LOCK_NODE_DATA) {
                            return;
                        }
                    }
                    let delete = connection.client().delete(&path, None);
                    // Not if it has children by now.
                    drop(connection.write(Clock::Boot.now(), delete).await);
                }
            });
            join_all(deleted).await;
        }
    }
}
