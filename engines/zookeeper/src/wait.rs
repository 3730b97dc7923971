//! Waiting.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant};
use fencelock_core::{Clock, Result};
use futures_util::future::{join_all, select_all};
use zookeeper_client::Error as Refusal;

use crate::acquire::{Seen, Stood};
use crate::claim_node::confirm;
use crate::connection::Link;
use crate::error::Trouble;
use crate::state::Store;

impl Store {
    /// Waits until it may be a claim's turn.
    pub(crate) async fn changed(&self, claim: &Claim) -> Result<Option<Grant>> {
        let Some(spot) = self.spot(claim.id) else {
            return Ok(None);
        };
        loop {
            let now = spot.now().clone();
            let Some(node) = now.node.filter(|_| !now.unsure && !now.over) else {
                return Ok(None);
            };
            let link = now.session.any_link().await;
            if !Arc::ptr_eq(&link.life, &now.life) {
                return Ok(None);
            }
            match self.await_one(&link, &now.behind).await {
                Ok(true) => {}
                // Another connection may lead to a server that is behind: ask in full.
                Ok(false) => return Ok(None),
                Err(trouble) => return Err(self.error(waiting(claim), trouble)),
            }
            let parent = &spot.above.path;
            // A session that was confirmed lately need not be confirmed again.
            let sent = Clock::Boot.now();
            let lease = self.lease(claim, &link.life);
            let stale = sent.since(link.life.confirmed()) > lease / 4;
            let (confirmed, children) = if stale {
                let confirm = confirm(&link, &spot.above.below(&node.name));
                let list = self.children_now(&link, parent);
                let (confirmed, children) = tokio::join!(link.write(sent, confirm), list);
                (confirmed.map(|()| sent), children)
            } else {
                let confirmed = link.life.confirmed();
                (Ok(confirmed), self.children_now(&link, parent).await)
            };
            let confirmed = match confirmed {
                Ok(confirmed) => confirmed,
                Err(Trouble::Answered(Refusal::NoNode)) => return Ok(None),
                Err(trouble) => return Err(self.error(waiting(claim), trouble)),
            };
            let children = children.map_err(|trouble| self.error(waiting(claim), trouble))?;
            let seen = (&link, Seen::Line(children));
            match self.judge(&spot, claim, seen, confirmed).await? {
                Stood::Held(grant) => return Ok(Some(grant)),
                Stood::Waiting(_) => {}
                Stood::Gone => return Ok(None),
            }
        }
    }

    /// Waits until one of these nodes is gone or was replaced; `false` if the connection was lost before.
    async fn await_one(&self, link: &Link, paths: &[String]) -> Result<bool, Trouble> {
        let asked: Vec<_> = paths
            .iter()
            .map(|path| link.client().check_and_watch_stat(path))
            .collect();
        let answers = join_all(asked.into_iter().map(|asked| link.read(asked))).await;
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
            () = link.ended() => Ok(false),
            _ = select_all(watchers) => Ok(true),
        }
    }
}

fn waiting(claim: &Claim) -> String {
    format!("waiting for lock {}", claim.name)
}
