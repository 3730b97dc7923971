//! The reaper: it deletes the nodes of ended holds, and lock nodes that this client does not use any more.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{BootInstant, Clock, LockName};
use futures_util::future::join_all;

use crate::connection::Connection;
use crate::entry::Entry;
use crate::lock_node::{LOCK_NODE_DATA, LockNodeUse};
use crate::state::{MAX_IN_FLIGHT, State};

/// How long a lock node is kept after its last use by this client.
const IDLE_TIME: Duration = Duration::from_secs(1);

/// The longest pause of the reaper while it has something left to do.
const INTERVAL: Duration = Duration::from_millis(300);

pub(crate) async fn reap(state: Arc<State>) {
    loop {
        let next = state.reap_once().await;
        let due = state.reap_due.notified();
        match next {
            Some(next) => {
                let pause = next.since(Clock::Boot.now()).min(INTERVAL);
                let pause = pause.max(Duration::from_millis(1));
                drop(tokio::time::timeout(pause, due).await);
            }
            None => due.await,
        }
    }
}

impl State {
    /// Returns when the next hold ends or lock node may be deleted.
    async fn reap_once(&self) -> Option<BootInstant> {
        let expired = self.take_expired();
        join_all(expired.iter().map(|entry| self.reap_entry(entry))).await;
        self.delete_idle_lock_nodes(IDLE_TIME).await;
        let mut registry = self.registry.lock();
        let end = registry.deadlines.peek().map(|Reverse((at, _))| *at);
        let idle = registry.lock_nodes.values().any(|used| used.uses == 0);
        let soon = idle.then(|| Clock::Boot.now() + INTERVAL);
        let next = end.into_iter().chain(soon).min();
        registry.reap_scheduled = next.is_some();
        next
    }

    /// The holds that have expired, at most as many as may be deleted at once.
    fn take_expired(&self) -> Vec<Arc<Entry>> {
        let now = Clock::Boot.now();
        let mut expired = Vec::new();
        let mut registry = self.registry.lock();
        while let Some(Reverse((at, id))) = registry.deadlines.peek().copied() {
            if at > now || expired.len() >= MAX_IN_FLIGHT {
                break;
            }
            registry.deadlines.pop();
            let Some(entry) = registry.entries.get(&id).map(Arc::clone) else {
                continue;
            };
            let (held, ends_at) = {
                let mut known = entry.known.lock();
                known.ended |= known.ends_at <= now;
                (known.held, known.ends_at)
            };
            if ends_at <= now {
                expired.push(entry);
            } else if held {
                // It was renewed meanwhile.
                registry.deadlines.push(Reverse((ends_at, id)));
            }
            // Else this deadline was that of an earlier node of a claim that waits again.
        }
        expired
    }

    /// Deletes the node of an expired hold, or schedules another attempt.
    async fn reap_entry(&self, entry: &Arc<Entry>) {
        let uncertain = entry.known.lock().uncertain;
        let settled = match uncertain {
            true => self.settle(entry).await,
            false => Ok(()),
        };
        if settled.is_ok() && self.delete_node(entry).await.is_ok() {
            return self.remove(entry);
        }
        let soon = Clock::Boot.now() + INTERVAL;
        self.registry
            .lock()
            .deadlines
            .push(Reverse((soon, entry.id)));
    }

    /// Deletes the lock nodes that this client has not used for this time. Those that other clients use stay, and so do
    /// those that another library created.
    pub(crate) async fn delete_idle_lock_nodes(&self, idle: Duration) {
        let now = Clock::Boot.now();
        let names: Vec<_> = {
            let mut registry = self.registry.lock();
            let is_idle = |_: &LockName, used: &mut LockNodeUse| {
                used.uses == 0 && now.since(used.idle_since) >= idle
            };
            let unused = registry.lock_nodes.extract_if(is_idle);
            unused.map(|(name, used)| (name, used.ours)).collect()
        };
        for names in names.chunks(MAX_IN_FLIGHT) {
            let Ok(connection) = self.sessions.waiting.connection().await else {
                // They are containers, so the servers will delete them.
                return;
            };
            let deleted = names.iter().map(|(name, ours)| {
                delete_lock_node(&connection, self.lock_node_path(name), *ours)
            });
            join_all(deleted).await;
        }
    }
}

/// Deletes a lock node if this library created it and it has no children.
async fn delete_lock_node(connection: &Connection, path: String, ours: bool) {
    if !ours {
        let found = connection.read(connection.client().get_data(&path)).await;
        if !found.is_ok_and(|(data, _)| data == LOCK_NODE_DATA) {
            return;
        }
    }
    let delete = connection.client().delete(&path, None);
    // The servers refuse it if there are children.
    drop(connection.write(Clock::Boot.now(), delete).await);
}
