//! A claim that holds: its grant, and its session.

use std::sync::Arc;

use etcd_client::{Compare, CompareOp, PutOptions, Txn, TxnOp};
use fencelock_core::engine::{Claim, Grant, Standing};
use fencelock_core::{BootInstant, Clock, Result, Tokens};

use crate::entry::Entry;
use crate::session::{Class, Holding, Session};
use crate::state::State;
use crate::stored::{self, DOWNGRADED, token_at};

/// How often a hold is moved again because the session to which it moved has ended.
const MOVES: u32 = 5;

/// Whether a hold of this claim needs a session of its own, because other processes rely on its token and on its expiry.
pub(crate) fn needs_own_session(claim: &Claim) -> bool {
    claim.record
}

impl State {
    /// The grant of a claim that is at the head of the queue. Moves the claim to a session of its kind first if necessary.
    /// `None` if its key is gone, or its session has ended.
    pub(crate) async fn grant(
        self: &Arc<Self>,
        claim: &Claim,
        sent: BootInstant,
    ) -> Result<Option<Standing>> {
        self.read_mail();
        let own_session = needs_own_session(claim);
        let must_move = |entry: &Entry| {
            (own_session || !claim.lock_delay.is_zero()) && !entry.session.suits(claim, own_session)
        };
        let to_move = self
            .entries
            .lock()
            .get(claim.id)
            .filter(|e| must_move(e))
            .cloned();
        if let Some(entry) = to_move {
            let moved = self.move_hold(claim, &entry, entry.token_offset);
            if Box::pin(moved).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(self.grant_now(claim, sent).map(Standing::Held))
    }

    fn grant_now(&self, claim: &Claim, sent: BootInstant) -> Option<Grant> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(claim.id)?;
        let (revision, tokens) = entry.created?;
        let key = entry.key.as_bytes();
        let how = match entry.holds {
            true => Holding::Again { shorten: false },
            false => Holding::New,
        };
        let grant = entry
            .session
            .hold(claim, key, revision, tokens, (sent, how));
        // It stays noted that a hold has ended.
        entry.holds |= grant.is_some();
        entry.waits_for = None;
        grant
    }

    /// A downgrade from exclusive to shared: under the same key, so in the same place ahead of all waiters.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        sent: BootInstant,
    ) -> Result<Standing> {
        let Some((revision, tokens)) = entry.created else {
            return Ok(Standing::Busy);
        };
        let Some(session) = self.move_hold(claim, entry, DOWNGRADED).await? else {
            return Ok(Standing::Busy);
        };
        self.update(claim, |entry| entry.mode = claim.mode);
        let token = Tokens::one(token_at(tokens.first, DOWNGRADED));
        let from = (sent, Holding::Again { shorten: false });
        let grant = session.hold(claim, entry.key.as_bytes(), revision, token, from);
        Ok(grant.map_or(Standing::Busy, Standing::Held))
    }

    /// Moves a hold to a session whose lease is long enough, and stores the token with this offset. `None` if its key is
    /// gone, or the hold has ended.
    pub(crate) async fn move_hold(
        self: &Arc<Self>,
        claim: &Claim,
        entry: &Entry,
        token_offset: u32,
    ) -> Result<Option<Arc<Session>>> {
        let Some((revision, _)) = entry.created else {
            return Ok(None);
        };
        let key = entry.key.as_str();
        for _ in 0..MOVES {
            let class = Class::for_hold(claim, needs_own_session(claim));
            let pin = self.session(class, claim).await?;
            let options = PutOptions::new().with_lease(pin.session.lease);
            let value = stored::write(claim, entry.base, &self.client, token_offset);
            let mine = Compare::create_revision(key, CompareOp::Equal, revision);
            let put = Txn::new()
                .when([mine])
                .and_then([TxnOp::put(key, value, Some(options))]);
            let action = || format!("renewing lock {}", claim.name);
            match self.cluster.txn(action, put).await {
                Ok(reply) if !reply.succeeded() => return Ok(None),
                Ok(_) => {}
                Err(failed) if failed.lease_expired => {
                    self.check(&pin.session, Clock::Boot.now()).await?;
                    continue;
                }
                Err(failed) => {
                    // The hold may have moved, or may move even after later requests: that session must not be revoked.
                    self.update(claim, |entry| entry.keep_doubtful(pin, failed.in_doubt));
                    return Err(failed.error);
                }
            }
            let session = Arc::clone(&pin.session);
            let mut ended = false;
            self.update(claim, |entry| {
                let moves = entry.holds && !Arc::ptr_eq(&entry.session, &session);
                ended = moves && !entry.session.hand_over(claim.id, &session);
                if !ended {
                    entry.session = Arc::clone(&session);
                    entry.token_offset = token_offset;
                    entry.pins = vec![pin];
                }
            });
            return Ok((!ended).then_some(session));
        }
        Ok(None)
    }
}
