//! The life of a session: begun, kept alive, compared with what the store has, and ended.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Event, LeaseKind};
use fencelock_core::{BootInstant, Clock, Result};

use crate::error::RequestError;
use crate::layout::is_release_notice;
use crate::session::{Class, Hold, Pin, Session};
use crate::state::State;

/// The pause before the release of an expired hold is tried again.
const RETRY: Duration = Duration::from_millis(500);

impl State {
    /// A session of this class for a claim, begun if there is none.
    pub(crate) async fn session(self: &Arc<Self>, class: Class, claim: &Claim) -> Result<Arc<Pin>> {
        let bytes = self.layout().max_key_len(&claim.name);
        if let Some(pin) = self.sessions.usable(class, bytes) {
            return Ok(pin);
        }
        if class.is_for_one() {
            return Ok(self.begin_session(class, bytes).await?);
        }
        let limit = self.cluster.config.response_timeout;
        let opening = self.sessions.opening.begin(limit).await;
        let mut opening =
            opening.ok_or_else(|| self.cluster.no_answer("beginning a session", limit))?;
        if let Some(pin) = self.sessions.usable(class, bytes) {
            return Ok(pin);
        }
        opening.inherit(&self.cluster.config.store)?;
        let begun = self.begin_session(class, bytes).await;
        Ok(begun.inspect_err(|failed| opening.fail(&failed.error))?)
    }

    async fn begin_session(
        self: &Arc<Self>,
        class: Class,
        bytes: usize,
    ) -> Result<Arc<Pin>, RequestError> {
        let connection = self.cluster.connection().await;
        let connection = connection.map_err(RequestError::not_sent)?.number;
        let sent = Clock::Boot.now();
        let lease = self.cluster.grant_lease(class.lease_seconds()).await?;
        let session = Session::new(class, lease, sent, connection);
        let pin = session.pin(bytes);
        self.sessions.insert(&session);
        self.spawn(keep_alive(Arc::clone(self), session));
        Ok(pin)
    }

    /// Makes sure that at some time after `since` the session was alive, and the keys of its holds existed.
    pub(crate) async fn check(
        &self,
        session: &Arc<Session>,
        since: BootInstant,
    ) -> Result<(), RequestError> {
        let _checking = session.checking.lock().await;
        if session.status.lock().audited >= since || session.has_ended() {
            return Ok(());
        }
        let sent = Clock::Boot.now();
        let kept = self.cluster.keep_alive(session.lease);
        let (kept, audited) = futures_util::future::join(kept, self.audit(session, sent)).await;
        match kept {
            Ok(()) => {
                session.status.lock().confirmed = sent;
                audited?;
                session.status.lock().audited = sent;
                if let Err(failed) = self.sweep(session).await {
                    tracing::debug!(error = %failed.error, "looking for keys without a claim; trying again");
                }
                Ok(())
            }
            Err(failed) if failed.lease_expired => {
                self.end(session);
                Ok(())
            }
            Err(failed) => Err(failed),
        }
    }

    /// Compares the keys on the lease with the holds of the session.
    async fn audit(&self, session: &Arc<Session>, sent: BootInstant) -> Result<(), RequestError> {
        let (holds, retired) = {
            let status = session.status.lock();
            (status.holds.clone(), status.retired)
        };
        if holds.is_empty() && !retired {
            return Ok(());
        }
        let Some(keys) = self.cluster.lease_keys(session.lease).await? else {
            return Ok(());
        };
        let found: HashSet<&Vec<u8>> = keys.iter().collect();
        let earlier = holds.iter().filter(|(_, hold)| hold.since < sent);
        for (id, hold) in earlier.filter(|(_, hold)| !found.contains(&hold.key)) {
            // The leader answers about leases without asking the others, and may lag: the quorum decides.
            let exists = self.cluster.exists(&hold.key, hold.revision).await?;
            if !exists && session.forget_hold(*id) {
                // The servers do not say who deleted the key.
                let gone = Event::Ended(*id, LeaseKind::Lease);
                self.events.tell(gone);
            }
        }
        if retired {
            for key in self.without_claim(session, keys) {
                // A claim in another session may have this key by now.
                self.cluster.delete_on_lease(&key, session.lease).await?;
                self.entries.lock().remove_withdrawn(&key);
            }
        }
        Ok(())
    }

    /// Deletes keys that have no claim, once over each connection. The client does not know what happened before it opened a
    /// connection: a restored snapshot brings back the keys of claims that ended long ago.
    async fn sweep(&self, session: &Arc<Session>) -> Result<(), RequestError> {
        let connection = self.cluster.connection().await;
        let connection = connection.map_err(RequestError::not_sent)?.number;
        if session.status.lock().swept == connection {
            return Ok(());
        }
        let seen = self.cluster.seen();
        if let Some(keys) = self.cluster.lease_keys(session.lease).await? {
            for key in self.without_claim(session, keys) {
                if !is_release_notice(&key) {
                    let deleted = self.cluster.delete_created_by(&key, session.lease, seen);
                    deleted.await?;
                }
            }
        }
        session.status.lock().swept = connection;
        Ok(())
    }

    /// Those of these keys that belong to no claim, and to no hold of the session. A hold that was abandoned has no claim.
    fn without_claim(&self, session: &Session, mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        let mut kept = self.entries.lock().keys();
        let status = session.status.lock();
        kept.extend(status.holds.values().map(|hold| hold.key.clone()));
        keys.retain(|key| !kept.contains(key));
        keys
    }

    /// Ends a session that is over, and reports the loss of its holds.
    fn end(&self, session: &Arc<Session>) {
        self.sessions.remove(session);
        for id in session.end() {
            self.events.tell(Event::Ended(id, LeaseKind::Session));
        }
        if session.status.lock().in_doubt {
            self.entries.lock().remove_settled();
        }
    }

    /// Ends the holds that were not renewed in time, and deletes their keys. From then on a claim that is placed again gets
    /// another key. `left` has the keys that are still to be deleted.
    async fn reap(&self, session: &Arc<Session>, left: &mut Vec<Hold>) {
        let now = Clock::Boot.now();
        {
            let mut status = session.status.lock();
            let expired = status.holds.extract_if(|_, hold| hold.until <= now);
            left.extend(expired.map(|(_, hold)| hold));
        }
        for hold in std::mem::take(left) {
            let deleted = self.cluster.delete_created(&hold.key, hold.revision).await;
            if let Err(failed) = deleted {
                tracing::debug!(error = %failed.error, "releasing an expired hold; trying again");
                left.push(hold);
            }
        }
    }

    /// Revokes a session if it is empty.
    async fn revoke(&self, session: &Arc<Session>) {
        if !session.close() {
            return;
        }
        match self.cluster.revoke_lease(session.lease).await {
            Ok(()) => self.end(session),
            Err(failed) if failed.lease_expired => self.end(session),
            Err(failed) => {
                tracing::debug!(error = %failed.error, "revoking a session; trying again")
            }
        }
    }
}

/// A session's background task: keeps it alive while it is needed, and then revokes it.
async fn keep_alive(state: Arc<State>, session: Arc<Session>) {
    let mut failed = false;
    let mut to_delete = Vec::new();
    loop {
        let mut wake_up = session.next_wake_up(failed);
        if !to_delete.is_empty() {
            wake_up = wake_up.min(Clock::Boot.now() + RETRY);
        }
        tokio::select! {
            () = Clock::Boot.sleep_until(wake_up) => {}
            () = session.ended_or_done() => {}
        }
        state.reap(&session, &mut to_delete).await;
        if session.has_ended() {
            break;
        }
        let now = Clock::Boot.now();
        if session.is_done(now) {
            state.revoke(&session).await;
            failed = true;
            continue;
        }
        failed = false;
        if session.must_be_prolonged(now) {
            let checked = state.check(&session, now).await;
            if let Err(error) = &checked {
                tracing::debug!(error = %error.error, "keeping a session alive; trying again");
            }
            failed = checked.is_err();
        }
    }
    state.end(&session);
}
