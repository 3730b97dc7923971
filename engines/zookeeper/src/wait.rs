//! Waiting: a claim watches the nodes for which it waits, and decides again when one of them is gone.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{BootInstant, Clock, Result};
use futures_util::future::{join_all, select_all};
use zookeeper_client::Error as Refusal;

use crate::acquire::{Position, QueueView, Seen};
use crate::claim_node::confirm;
use crate::connection::Connection;
use crate::entry::Entry;
use crate::error::Failure;
use crate::state::State;

impl State {
    /// Returns the grant, or `None` when the claim must be placed again.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Option<Grant>> {
        let failure = |failure| self.error(format!("waiting for lock {}", claim.name), failure);
        let Some(entry) = self.entry(claim.id) else {
            return Ok(None);
        };
        loop {
            let known = entry.known.lock().clone();
            let Some(node) = known.node.filter(|_| !known.uncertain && !known.ended) else {
                return Ok(None);
            };
            let connection = known.managed.any_connection().await;
            if !Arc::ptr_eq(&connection.session, &known.session) {
                return Ok(None);
            }
            let path = entry.lock_node.child(&node.name);
            let gone = wait_for_any(&connection, &known.waits_for).await;
            if !gone.map_err(failure)? {
                // The next connection may lead to a server that lags.
                return Ok(None);
            }
            let read = self.confirm_and_read(&connection, claim, &entry, &path);
            let (confirmed, children) = match read.await {
                Ok(read) => read,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(None),
                Err(other) => return Err(failure(other)),
            };
            let seen = Seen::new(&connection, QueueView::Children(children), confirmed);
            match self.decide(&entry, claim, seen).await? {
                Position::Held(grant) => return Ok(Some(grant)),
                Position::Waiting(_) => {}
                Position::Gone => return Ok(None),
            }
        }
    }

    /// Reads the queue, and confirms the session unless that was done recently. Returns when the session was confirmed.
    async fn confirm_and_read(
        &self,
        connection: &Connection,
        claim: &Claim,
        entry: &Entry,
        path: &str,
    ) -> Result<(BootInstant, Vec<String>), Failure> {
        let lock_node = &entry.lock_node.path;
        let now = Clock::Boot.now();
        let lease = self.sessions.lease(claim, &connection.session);
        let confirmed = connection.session.confirmed();
        if now.since(confirmed) <= lease / 4 {
            let children = self.children(connection, lock_node).await?;
            return Ok((confirmed, children));
        }
        let confirm = confirm(connection, path);
        let list = self.children(connection, lock_node);
        let (confirmed, children) = tokio::join!(connection.write(now, confirm), list);
        confirmed?;
        Ok((now, children?))
    }
}

/// Waits until one of these nodes is deleted or replaced; `false` if the connection was lost first.
async fn wait_for_any(connection: &Connection, paths: &[String]) -> Result<bool, Failure> {
    let requests: Vec<_> = paths
        .iter()
        .map(|path| connection.client().check_and_watch_stat(path))
        .collect();
    let replies = join_all(requests.into_iter().map(|sent| connection.read(sent))).await;
    let mut watchers = Vec::new();
    for reply in replies {
        let (stat, watcher) = reply?;
        if stat.is_none() {
            return Ok(true);
        }
        watchers.push(Box::pin(watcher.changed()));
    }
    if watchers.is_empty() {
        return Ok(true);
    }
    let changed = connection.unless_lost(select_all(watchers)).await;
    Ok(changed.is_some())
}
