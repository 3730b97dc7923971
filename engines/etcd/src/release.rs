//! Withdrawing a claim, and the release notice for the claims that wait for the lock.
//!
//! A waiter whose predecessor ends must know whether the predecessor held. A holder has no predecessor, but a key also ends
//! when its claim leaves the queue, or its session ends. So the release of a contended lock puts a release notice in the same
//! transaction, and the next waiter watches both keys. The notice is attached to the same lease. The next release puts it again
//! under the same key, and it is deleted when there was no release for a while.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp, TxnOpResponse};
use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{Error, Mode, Result};
use tokio::time::Instant;

use crate::entry::Entry;
use crate::error::RequestError;
use crate::layout::{Layout, release_notice};
use crate::state::State;

/// How long a release notice stays.
const KEPT: Duration = Duration::from_secs(1);

impl State {
    pub(crate) async fn withdraw(self: &Arc<Self>, claim: &Claim, how: Leave) -> Result<Withdrawn> {
        let Some(entry) = self.entries.lock().get(claim.id).cloned() else {
            return Ok(Withdrawn::NotOwner);
        };
        let expired = entry.session.has_ended();
        if how == Leave::Abandon && entry.holds && !claim.lock_delay.is_zero() {
            entry.session.abandon(claim);
            // The key stays for a while, so it must not be reused.
            self.entries.lock().begin_series();
            self.entries.lock().remove(claim.id);
            return Ok(Withdrawn::Expired);
        }
        let deleted = match entry.created {
            Some((revision, _)) => self.delete_key(claim, &entry, revision).await?,
            None => {
                // Delete what a request without a reply has put.
                self.update(claim, Entry::mark_withdrawn);
                let deleted = self.cluster.delete(&entry.key).await;
                self.or_give_up_key(claim, deleted)?
            }
        };
        entry.session.forget_hold(claim.id);
        self.update(claim, |entry| {
            entry.created = None;
            entry.mark_withdrawn();
        });
        if !self.is_settled(&entry).await {
            let store = &self.cluster.config.store;
            return Err(Error::unsettled(store, "releasing"));
        }
        self.entries.lock().remove(claim.id);
        Ok(match (deleted, entry.holds) {
            (true, true) => Withdrawn::Released,
            (true, false) => Withdrawn::LeftQueue,
            (false, _) if expired => Withdrawn::Expired,
            (false, _) => Withdrawn::NotOwner,
        })
    }

    /// Deletes the key of a claim. `false` if it did not exist.
    async fn delete_key(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        revision: i64,
    ) -> Result<bool, RequestError> {
        let deleted = match self.layout() {
            // No other claim had this key meanwhile, and none will get it if there is no reply.
            Layout::Fencelock => self.release(claim, entry).await,
            Layout::Concurrency => {
                let key = entry.key.as_bytes();
                self.cluster.delete_created(key, revision).await
            }
        };
        self.or_give_up_key(claim, deleted)
    }

    /// The outcome of a request to delete the claim's key. If it failed, the key may be deleted at any moment: no claim uses it
    /// from now on.
    pub(crate) fn or_give_up_key(
        &self,
        claim: &Claim,
        deleted: Result<bool, RequestError>,
    ) -> Result<bool, RequestError> {
        if deleted.is_err() {
            self.give_up_key(claim);
        }
        deleted
    }

    fn give_up_key(&self, claim: &Claim) {
        let retired: Vec<_> = {
            let mut entries = self.entries.lock();
            entries.begin_series();
            let Some(entry) = entries.get_mut(claim.id) else {
                return;
            };
            // The session may live as long as this client. The key must not, even if the claim is not withdrawn again. A hold
            // that is not renewed ends.
            let pinned = entry.pins.iter().map(|pin| Arc::clone(&pin.session));
            let sessions = pinned.chain([Arc::clone(&entry.session)]);
            let retired = sessions.filter(|_| !entry.holds).collect();
            entry.mark_withdrawn();
            retired
        };
        for session in retired {
            session.retire();
        }
    }

    /// Waits until no request without a reply can put the claim any more, because its sessions have ended. `false` if that
    /// takes too long.
    async fn is_settled(&self, entry: &Entry) -> bool {
        if entry.in_doubt.is_empty() {
            return true;
        }
        let in_doubt = entry.in_doubt.iter().flatten();
        let ended = in_doubt.map(|session| session.ended());
        let ended = futures_util::future::join_all(ended);
        let limit = self.cluster.config.response_timeout;
        tokio::time::timeout(limit, ended).await.is_ok()
    }

    /// Deletes a claim's key, with a release notice if other claims may wait. `false` if there was no key.
    async fn release(self: &Arc<Self>, claim: &Claim, entry: &Entry) -> Result<bool, RequestError> {
        let held = entry.holds && entry.mode == Mode::Exclusive;
        let notice = release_notice(entry.key.as_bytes());
        let contention = self.contention.of(&claim.name);
        let notice = notice.filter(|_| held && contention.is_contended());
        contention.clear_last();
        match notice {
            Some(notice) => self.release_with_notice(entry, notice).await,
            None => self.cluster.delete(&entry.key).await,
        }
    }

    async fn release_with_notice(
        self: &Arc<Self>,
        entry: &Entry,
        notice: String,
    ) -> Result<bool, RequestError> {
        self.delete_later(&notice);
        let options = PutOptions::new().with_lease(entry.session.lease);
        let release = Txn::new().and_then([
            TxnOp::delete(entry.key.as_bytes(), None),
            TxnOp::put(notice, "", Some(options)),
        ]);
        let reply = match self.cluster.txn(|| "releasing".into(), release).await {
            Ok(reply) => reply,
            // The transaction had no effect.
            Err(failed) if failed.lease_expired => return self.cluster.delete(&entry.key).await,
            Err(failed) => return Err(failed),
        };
        let mut replies = reply.op_responses().into_iter();
        Ok(replies.any(|op| matches!(op, TxnOpResponse::Delete(deleted) if deleted.deleted() > 0)))
    }

    /// Has a release notice deleted in the background when it is no longer useful.
    fn delete_later(self: &Arc<Self>, notice: &str) {
        let was_empty = {
            let mut notices = self.release_notices.lock();
            let was_empty = notices.is_empty();
            notices.insert(notice.to_owned(), Instant::now());
            was_empty
        };
        if was_empty {
            self.spawn(delete_old_notices(Arc::clone(self)));
        }
    }

    /// Takes out the notices that are old enough. `None` if there were no notices.
    fn take_old_notices(&self) -> Option<Vec<String>> {
        let mut notices = self.release_notices.lock();
        if notices.is_empty() {
            return None;
        }
        let old = notices.extract_if(|_, put| put.elapsed() >= KEPT);
        Some(old.map(|(notice, _)| notice).collect())
    }
}

async fn delete_old_notices(state: Arc<State>) {
    while let Some(old) = state.take_old_notices() {
        for notice in old {
            // A notice that is left because of an error ends with its session.
            if let Err(failed) = state.cluster.delete(&notice).await {
                tracing::debug!(error = %failed.error, "a release notice was not deleted");
            }
        }
        tokio::time::sleep(KEPT / 2).await;
    }
}
