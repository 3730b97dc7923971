//! The standing of a claim in the queue, read from the store.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{KeyValue, Txn, TxnResponse};
use fencelock_core::engine::{Claim, Place, Standing};
use fencelock_core::{BootInstant, Mode, Result};

use crate::entry::WaitsFor;
use crate::state::State;
use crate::stored::{self, admitted};
use crate::txns::{found, revision};

/// A waiter is woken by the end of its predecessor. It also checks this often, in case it missed that.
const RECHECK: Duration = Duration::from_secs(30);

pub(crate) enum Position {
    Holds,
    Waits(WaitsFor),
    /// Its key does not exist.
    Gone,
}

impl State {
    /// The standing of a claim whose key was put. Asks the store if the position is not known. `None` if the key is gone.
    pub(crate) async fn standing(
        self: &Arc<Self>,
        claim: &Claim,
        sent: BootInstant,
        position: Option<Position>,
    ) -> Result<Option<Standing>> {
        let position = match position {
            Some(position) => position,
            None => self.position(claim).await?,
        };
        match position {
            Position::Holds => self.grant(claim, sent).await,
            Position::Gone => Ok(None),
            Position::Waits(_) if !claim.wait => {
                // The claim was put only to be counted.
                if let Some((key, revision)) = self.key_of(claim) {
                    let deleted = self.cluster.delete_created(key.as_bytes(), revision).await;
                    self.or_give_up_key(claim, deleted)?;
                }
                self.entries.lock().give_up(claim.id);
                Ok(Some(Standing::Busy))
            }
            Position::Waits(waits_for) => {
                self.update(claim, |entry| entry.waits_for = Some(waits_for));
                Ok(Some(Standing::Waiting(Place::new(sent + RECHECK))))
            }
        }
    }

    /// The position of a claim according to the quorum.
    async fn position(&self, claim: &Claim) -> Result<Position> {
        let Some(key) = self.key_of(claim) else {
            return Ok(Position::Gone);
        };
        let reply = self
            .ask(claim, self.standing_txn(claim, key, false))
            .await?;
        self.position_in(claim, &reply)
    }

    /// The position of a claim according to the connected member, at this revision or later. Asks the quorum if the member
    /// lags. Such a member may still see a claim ahead that is gone, but a claim that is first stays first.
    pub(crate) async fn position_at_member(
        &self,
        claim: &Claim,
        at_least: i64,
    ) -> Result<Position> {
        let Some(key) = self.key_of(claim) else {
            return Ok(Position::Gone);
        };
        let reply = self.ask(claim, self.standing_txn(claim, key, true)).await?;
        match revision(&reply) < at_least {
            true => self.position(claim).await,
            false => self.position_in(claim, &reply),
        }
    }

    async fn ask(&self, claim: &Claim, txn: Txn) -> Result<TxnResponse> {
        let action = || format!("waiting for lock {}", claim.name);
        Ok(self.cluster.txn(action, txn).await?)
    }

    /// A claim's key and its create revision, if it was put.
    fn key_of(&self, claim: &Claim) -> Option<(String, i64)> {
        let entries = self.entries.lock();
        let entry = entries.get(claim.id)?;
        let (revision, _) = entry.created?;
        Some((entry.key.clone(), revision))
    }

    /// The position of a claim in the reply to [`State::standing_txn`].
    fn position_in(&self, claim: &Claim, reply: &TxnResponse) -> Result<Position> {
        let mut got = found(reply);
        let (Some((own, _)), Some((mut queue, more))) = (got.next(), got.next()) else {
            return Ok(Position::Gone);
        };
        let Some(own) = own.into_iter().next() else {
            return Ok(Position::Gone);
        };
        match claim.mode {
            Mode::Exclusive => Ok(match queue.first() {
                None => Position::Holds,
                Some(before) => Position::Waits(WaitsFor::key(before, !more)),
            }),
            _ => {
                queue.push(own.clone());
                self.position_among(claim, &own, &queue)
            }
        }
    }

    /// The position of a claim in a queue that was read from its head to this claim at least.
    pub(crate) fn position_among(
        &self,
        claim: &Claim,
        own: &KeyValue,
        queue: &[KeyValue],
    ) -> Result<Position> {
        let mut modes = Vec::new();
        for kv in queue {
            let stored = stored::read(self.layout(), kv);
            let stored = stored.map_err(|why| self.not_a_lock(&claim.name, why))?;
            modes.push((kv, stored.mode));
            if kv.key() == own.key() {
                break;
            }
        }
        if admitted(modes.iter().map(|(_, mode)| *mode)) == modes.len() {
            return Ok(Position::Holds);
        }
        // It waits for the last claim of another kind. If there is none (too many permits), it waits for the end of any claim.
        let same = |mode: &Mode| mode.letter() == claim.mode.letter();
        let other = modes.into_iter().rev().find(|(_, mode)| !same(mode));
        let waits_for = other.map_or(WaitsFor::Any, |(kv, _)| WaitsFor::key(kv, false));
        Ok(Position::Waits(waits_for))
    }
}

/// The position of an exclusive claim at the end of a queue. `queue` has the last two claims, the last one first, and `more`
/// says whether there are more. `None` if the claim is not the last.
pub(crate) fn position_at_end(own: &[u8], queue: &[KeyValue], more: bool) -> Option<Position> {
    match queue {
        [last] if last.key() == own => Some(Position::Holds),
        [last, before] if last.key() == own => Some(Position::Waits(WaitsFor::key(before, !more))),
        _ => None,
    }
}
