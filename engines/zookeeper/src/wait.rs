//! Waiting: a claim watches the nodes for which it waits, and decides again when one of them is gone.
//!
//! An exclusive claim that waits for one other claim need not even read the queue if that one held: nobody else is before it
//! then. The holder tells so. Its release creates and deletes a release notice in the transaction that deletes its node, and
//! the waiter watches for the notice. Nobody ever sees the notice itself. If a node ends without a notice, its claim may have
//! left the queue, or its session may have ended. Then the waiter reads the queue.
//!
//! The waiter watches its own node as well, so that it does not take a turn after its own end. The server sends what happened in
//! the order in which it happened.

use std::pin::pin;
use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{BootInstant, Clock, Mode, Result};
use futures_util::FutureExt;
use futures_util::future::{join_all, join3, select_all};
use zookeeper_client::{Error as Refusal, EventType};

use crate::acquire::{Position, QueueView, Seen};
use crate::claim_node::confirm;
use crate::connection::Connection;
use crate::entry::{Entry, Known};
use crate::error::Failure;
use crate::names;
use crate::state::State;

/// What ended a wait.
enum Woken {
    /// The claim before this one held and was released.
    ByNotice,
    /// A node changed or is gone.
    ByChange,
    ConnectionLost,
}

impl State {
    /// Returns the grant, or `None` when the claim must be placed again.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Option<Grant>> {
        let failure = |failure| self.error(format!("waiting for lock {}", claim.name), failure);
        let Some(entry) = self.entry(claim.id) else {
            return Ok(None);
        };
        loop {
            let known = entry.known.lock().clone();
            let Some(node) = known
                .node
                .as_ref()
                .filter(|_| !known.uncertain && !known.ended)
            else {
                return Ok(None);
            };
            let connection = known.managed.any_connection().await;
            if !Arc::ptr_eq(&connection.session, &known.session) {
                return Ok(None);
            }
            let path = entry.lock_node.child(&node.name);
            let woken = match self.release_notice_for(claim, &known) {
                Some((before, notice)) => {
                    wait_behind(&connection, &entry, &path, &notice, before).await
                }
                None => wait_for_any(&connection, &known.waits_for).await,
            };
            let woken = woken.map_err(failure)?;
            if matches!(woken, Woken::ConnectionLost) {
                // The next connection may lead to a server that lags behind.
                return Ok(None);
            }
            let seen = self.look(&connection, claim, &entry, &path, &woken);
            let seen = match seen.await {
                Ok(seen) => seen,
                Err(Failure::Refused(Refusal::NoNode)) => return Ok(None),
                Err(other) => return Err(failure(other)),
            };
            match self.decide(&entry, claim, seen).await? {
                Position::Held(grant) => return Ok(Some(grant)),
                Position::Waiting(_) => {}
                Position::Gone => return Ok(None),
            }
        }
    }

    /// The node that an exclusive claim waits for, and the notice of its release. `None` if there is none to be expected.
    fn release_notice_for<'a>(&self, claim: &Claim, known: &'a Known) -> Option<(&'a str, String)> {
        let [before] = &known.waits_for[..] else {
            return None;
        };
        let (_, node) = before.rsplit_once('/')?;
        // Other libraries give no notice.
        let is_ours = names::claim_id(node).is_some();
        (is_ours && claim.mode == Mode::Exclusive)
            .then(|| (before.as_str(), self.release_notice_path(node)))
    }

    /// Reads the queue unless a notice says enough, and confirms the session unless that was done recently.
    async fn look(
        &self,
        connection: &Arc<Connection>,
        claim: &Claim,
        entry: &Entry,
        path: &str,
        woken: &Woken,
    ) -> Result<Seen, Failure> {
        let lock_node = &entry.lock_node.path;
        let now = Clock::Boot.now();
        let lease = self.sessions.lease(claim, &connection.session);
        let confirmed = connection.session.confirmed();
        let is_recent = now.since(confirmed) <= lease / 4;
        let seen = |children, confirmed: BootInstant| {
            Seen::new(connection, QueueView::Children(children), confirmed)
        };
        if is_recent && matches!(woken, Woken::ByNotice) {
            return Ok(Seen::new(connection, QueueView::First, confirmed));
        }
        if is_recent {
            let children = self.children(connection, lock_node).await?;
            return Ok(seen(children, confirmed));
        }
        let confirm = confirm(connection, path);
        let list = self.children(connection, lock_node);
        let (confirmed, children) = tokio::join!(connection.write(now, confirm), list);
        confirmed?;
        Ok(seen(children?, now))
    }
}

/// Waits behind the node `before`, whose holder gives the `notice` when it releases.
async fn wait_behind(
    connection: &Connection,
    entry: &Entry,
    own: &str,
    notice: &str,
    before: &str,
) -> Result<Woken, Failure> {
    // Sent in this order: the notice is watched when the node before is seen.
    let [own, notice, before] =
        [own, notice, before].map(|path| connection.client().check_and_watch_stat(path));
    let [own, notice, before] = [own, notice, before].map(|sent| connection.read(sent));
    let (own, notice, before) = join3(own, notice, before).await;
    let ((own, gone), (_, noticed), (before, changed)) = (own?, notice?, before?);
    if own.is_none() || before.is_none() {
        return Ok(Woken::ByChange);
    }
    let mut gone = Box::pin(gone.changed().map(drop));
    let mut changed = Box::pin(changed.changed().map(drop));
    let woken = {
        let mut noticed = pin!(noticed.changed());
        let woken = async {
            let event = tokio::select! {
                biased;
                () = &mut gone => return Woken::ByChange,
                event = &mut noticed => event,
                () = &mut changed => return Woken::ByChange,
            };
            // What happened to the own node before the notice is known by now, but perhaps was not when that was asked above.
            match event.event_type {
                EventType::NodeCreated if (&mut gone).now_or_never().is_none() => Woken::ByNotice,
                _ => Woken::ByChange,
            }
        };
        connection.unless_lost(woken).await
    };
    if let Some(Woken::ByNotice) = woken {
        // Both nodes go anyway. To end their watches before would be a request for each.
        entry.keep_watching([gone, changed]);
    }
    Ok(woken.unwrap_or(Woken::ConnectionLost))
}

/// Waits until one of these nodes is deleted or replaced.
async fn wait_for_any(connection: &Connection, paths: &[String]) -> Result<Woken, Failure> {
    let requests: Vec<_> = paths
        .iter()
        .map(|path| connection.client().check_and_watch_stat(path))
        .collect();
    let replies = join_all(requests.into_iter().map(|sent| connection.read(sent))).await;
    let mut watchers = Vec::new();
    for reply in replies {
        let (stat, watcher) = reply?;
        if stat.is_none() {
            return Ok(Woken::ByChange);
        }
        watchers.push(Box::pin(watcher.changed()));
    }
    if watchers.is_empty() {
        return Ok(Woken::ByChange);
    }
    let changed = connection.unless_lost(select_all(watchers)).await;
    Ok(changed.map_or(Woken::ConnectionLost, |_| Woken::ByChange))
}
