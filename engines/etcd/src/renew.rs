//! Renewals: one keepalive for all holds of a session, and a transaction for each hold whose token or session changes.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{HeldClaim, LeaseKind, Renewal};
use fencelock_core::{BootInstant, Clock, Error, Result};
use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt};

use crate::entry::Entry;
use crate::error::RequestError;
use crate::hold::needs_own_session;
use crate::session::{Holding, Session};
use crate::state::State;

/// How many transactions are sent at once.
const AT_ONCE: usize = 64;

impl State {
    pub(crate) async fn renew(self: &Arc<Self>, held: &[HeldClaim]) -> Vec<Renewal> {
        let sent = Clock::Boot.now();
        let each = held.iter().cloned().map(|held| {
            let state = Arc::clone(self);
            async move { state.session_of_hold(&held).await }
        });
        let each: Vec<_> = each.collect();
        let sessions: Vec<_> = stream::iter(each).buffered(AT_ONCE).collect().await;
        let checked = self.check_each(held, &sessions, sent).await;
        let answers = held.iter().zip(sessions).map(|(held, session)| {
            let session = match session {
                Ok(Some(session)) => session,
                Ok(None) => return self.not_held(held),
                Err(error) => return Renewal::Unknown(error),
            };
            let check = checked.iter().find(|(of, _)| Arc::ptr_eq(of, &session));
            if let Some((_, Err(failed))) = check {
                let (store, cause) = (&self.cluster.config.store, failed.error.to_string());
                return Renewal::Unknown(Error::unavailable(store, "renewing holds", cause));
            }
            self.renewed(held, &session, sent)
        });
        answers.collect()
    }

    /// Checks each session of these holds once.
    async fn check_each(
        &self,
        held: &[HeldClaim],
        sessions: &[Result<Option<Arc<Session>>>],
        sent: BootInstant,
    ) -> Vec<(Arc<Session>, Result<(), RequestError>)> {
        let mut shortest: Vec<(Arc<Session>, Duration)> = Vec::new();
        for (held, session) in held.iter().zip(sessions) {
            let Ok(Some(session)) = session else { continue };
            let ttl = held.claim.ttl;
            match shortest
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, session))
            {
                Some((_, shortest)) => *shortest = ttl.min(*shortest),
                None => shortest.push((Arc::clone(session), ttl)),
            }
        }
        let checks = shortest.into_iter().map(|(session, ttl)| async move {
            // A recent check for other holds is good enough.
            let recent = sent.as_nanos().saturating_sub((ttl / 6).as_nanos() as u64);
            let checked = self.check(&session, BootInstant::from_nanos(recent)).await;
            (session, checked)
        });
        join_all(checks).await
    }

    /// The session of a hold. Moves the hold first if its session does not suit it, or if the store has an earlier token. `None`
    /// if the claim does not hold by this token.
    async fn session_of_hold(self: &Arc<Self>, held: &HeldClaim) -> Result<Option<Arc<Session>>> {
        let claim = &held.claim;
        let Some(entry) = self.holding(held) else {
            return Ok(None);
        };
        let (Some((revision, tokens)), Some(offset)) = (entry.created, entry.offset_of(held.token))
        else {
            return Ok(None);
        };
        // A late renewal, from before the token was handed on, does not take it back.
        let offset = offset.max(entry.token_offset);
        let suits = entry.session.suits(claim, needs_own_session(claim));
        if suits && offset == entry.token_offset {
            return Ok(Some(entry.session));
        }
        let session = self.move_hold(claim, &entry, offset).await?;
        if let Some(session) = &session {
            // Noted before the check, which forgets the hold if its key is gone.
            let from = (Clock::Boot.now(), again(held));
            session.hold(claim, entry.key.as_bytes(), revision, tokens, from);
        }
        Ok(session)
    }

    fn holding(&self, held: &HeldClaim) -> Option<Entry> {
        let entry = self.entries.lock().get(held.claim.id).cloned()?;
        let is_it = entry.mode == held.claim.mode && !entry.withdrawn;
        let holds = is_it && entry.holds && entry.session.has_hold(held.claim.id);
        holds.then_some(entry)
    }

    /// The answer for a hold whose session was alive.
    fn renewed(&self, held: &HeldClaim, session: &Session, sent: BootInstant) -> Renewal {
        let claim = &held.claim;
        let grant = self.holding(held).and_then(|entry| {
            let (revision, tokens) = entry.created?;
            let from = (sent, again(held));
            session.hold(claim, entry.key.as_bytes(), revision, tokens, from)
        });
        match grant {
            Some(grant) => Renewal::kept(grant.counted_from, grant.lease, false),
            None => self.not_held(held),
        }
    }

    /// The answer for a claim that does not hold: its session has ended, or only the hold.
    fn not_held(&self, held: &HeldClaim) -> Renewal {
        let entries = self.entries.lock();
        match entries.get(held.claim.id) {
            Some(entry) if entry.holds && entry.session.has_ended() => {
                Renewal::Ended(LeaseKind::Session)
            }
            _ => Renewal::Lost,
        }
    }
}

fn again(held: &HeldClaim) -> Holding {
    Holding::Again {
        shorten: held.shorten,
    }
}
