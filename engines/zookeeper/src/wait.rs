//! Waiting.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{Clock, Result};
use futures_util::future::{join_all, select_all};
use zookeeper_client::Error as Refusal;

use crate::acquire::{Position, QueueView};
use crate::claim_node::confirm;
use crate::connection::Connection;
use crate::error::Failure;
use crate::state::State;

impl State {
    /// Waits until it may be a claim's turn.
    pub(crate) async fn changed(&self, claim: &Claim) -> Result<Option<Grant>> {
        let Some(entry) = self.entry(claim.id) else {
            return Ok(None);
        };
        loop {
            let known = entry.known().clone();
            let Some(node) = known.node.filter(|_| !known.uncertain && !known.ended) else {
                return Ok(None);
            };
            let connection = known.managed.any_connection().await;
            if !Arc::ptr_eq(&connection.session, &known.session) {
                return Ok(None);
            }
            match self.wait_for_any(&connection, &known.waits_for).await {
                Ok(true) => {}
                // Another connection may lead to a server that is behind: ask in full.
                Ok(false) => return Ok(None),
                Err(failure) => return Err(self.error(waiting(claim), failure)),
            }
            let lock_node = &entry.lock_node.path;
            // A session that was confirmed lately need not be confirmed again.
            let sent = Clock::Boot.now();
            let lease = self.lease(claim, &connection.session);
            let stale = sent.since(connection.session.confirmed()) > lease / 4;
            let (confirmed, children) = if stale {
                let confirm = confirm(&connection, &entry.lock_node.child(&node.name));
                let list = self.children_now(&connection, lock_node);
                let (confirmed, children) = tokio::join!(connection.write(sent, confirm), list);
                (confirmed.map(|()| sent), children)
            } else {
                let confirmed = connection.session.confirmed();
                (
                    Ok(confirmed),
                    self.children_now(&connection, lock_node).await,
                )
            };
            let confirmed = match confirmed {
                Ok(confirmed) => confirmed,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(None),
                Err(failure) => return Err(self.error(waiting(claim), failure)),
            };
            let children = children.map_err(|failure| self.error(waiting(claim), failure))?;
            let seen = (&connection, QueueView::Children(children));
            match self.decide(&entry, claim, seen, confirmed).await? {
                Position::Held(grant) => return Ok(Some(grant)),
                Position::Waiting(_) => {}
                Position::Gone => return Ok(None),
            }
        }
    }

    /// Waits until one of these nodes is gone or was replaced; `false` if the connection was lost before.
    async fn wait_for_any(
        &self,
        connection: &Connection,
        paths: &[String],
    ) -> Result<bool, Failure> {
        let asked: Vec<_> = paths
            .iter()
            .map(|path| connection.client().check_and_watch_stat(path))
            .collect();
        let answers = join_all(asked.into_iter().map(|asked| connection.read(asked))).await;
        let mut watchers = Vec::new();
        for answer in answers {
            let (stat, watcher) = answer?;
            if stat.is_none() {
                return Ok(true);
            }
            watchers.push(Box::pin(watcher.changed()));
        }
        if watchers.is_empty() {
            return Ok(true);
        }
        // In this order: a watcher must not be asked once its connection is gone.
        tokio::select! {
            biased;
            () = connection.lost() => Ok(false),
            _ = select_all(watchers) => Ok(true),
        }
    }
}

fn waiting(claim: &Claim) -> String {
    format!("waiting for lock {}", claim.name)
}
