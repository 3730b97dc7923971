//! Releasing, leaving the queue, and undoing a request without an answer: `POST /v1/claims/{id}/release`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{BootInstant, Clock, Error, Result};
use fencelock_wire::{How, Kind, ModeWord, Outcome, Release, Released, millis_up};
use tokio::time::timeout;

use crate::batch::What;
use crate::error::{Action, RequestError};
use crate::state::{Request, State};
use crate::wait::end_told;

/// How long an open poll may take to end. The service ends it when the release comes.
const POLL_ENDS: Duration = Duration::from_millis(500);

/// How often a claim is released again at most. The pause between is half of a claim window.
const MOST_AGAIN: usize = 10;

/// After a release without an answer, a claim is remembered for its lease and this time.
const KEPT: Duration = Duration::from_secs(60);

/// How often a release is sent again because a poll was open.
const TRIES: usize = 3;

/// Withdraws a claim. The answer is final for the lock and its queue at that time, unless a poll is still open. A request that
/// had no answer may still bring a hold later, for a claim window at most. Then the claim is released again and again until no
/// such request is left.
pub(crate) async fn withdraw(state: &Arc<State>, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    let mut first = None;
    for _ in 0..TRIES {
        end_told(state, claim);
        // A poll that is open now may take effect after this release, even if it is answered first.
        let polls = state.entries.open_polls(&claim.id);
        // The replica of the last poll. A release there ends the poll.
        let at = polls.as_ref().map(|(_, at)| *at);
        let (found, sent) = release_once(state, claim, how, at).await.inspect_err(|_| {
            let until = Clock::Boot.now() + claim.ttl + claim.lock_delay + KEPT;
            state.entries.leaves(&claim.id, until);
        })?;
        let withdrawn = *first.get_or_insert(found);
        let Some((mut open, _)) = polls else {
            if !state.entries.settle(&claim.id, sent) {
                let again = again(Arc::downgrade(state), claim.clone(), how);
                tokio::spawn(again);
            }
            if withdrawn == Withdrawn::Released {
                state.contention.of(&claim.name).clear_last();
            }
            return Ok(withdrawn);
        };
        let ended = timeout(POLL_ENDS, open.wait_for(|open| *open == 0)).await;
        if ended.is_err() {
            break;
        }
    }
    let action = Action::of("releasing", &claim.name).text();
    Err(Error::unsettled(&state.config.store, action))
}

/// Releases again what a late request may have taken, until the last such request is too old.
async fn again(state: Weak<State>, claim: Claim, how: Leave) {
    for _ in 0..MOST_AGAIN {
        let Some(engine) = state.upgrade() else {
            return;
        };
        let (mut closed, pause) = (engine.closed.subscribe(), engine.info.window() / 2);
        drop(engine);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = closed.wait_for(|closed| *closed) => return,
        }
        let Some(engine) = state.upgrade() else {
            return;
        };
        match release_once(&engine, &claim, how, None).await {
            Ok((_, sent)) if engine.entries.settle(&claim.id, sent) => return,
            Ok(_) => {}
            Err(failed) => {
                tracing::debug!(name = %claim.name, error = %failed.error, "releasing a claim once more");
            }
        }
    }
}

/// Sends one release. Returns its result, and when it was sent.
async fn release_once(
    state: &State,
    claim: &Claim,
    how: Leave,
    at: Option<usize>,
) -> Result<(Withdrawn, BootInstant), RequestError> {
    let key = state.key_of(claim)?;
    let home = state.home_of(&claim.id);
    if state.homes.is_some() && home.is_none() {
        // No replica got a request for it.
        return Ok((Withdrawn::NotOwner, Clock::Boot.now()));
    }
    let path = format!("/v1/claims/{}/release", claim.id);
    let body = state.json(&release(claim, how))?;
    let action = Action::of("releasing", &claim.name);
    let request = Request {
        ask: State::post(&path, &key.header, &body),
        action,
        claim: Some(&claim.id),
        at,
        home: home.as_ref(),
        with_others: Some(What::Release),
        moves_on: true,
        limit: state.config.response_timeout,
    };
    let reply = state.ask_again(request).await?;
    match state.read::<Released>(&reply, action) {
        Ok(released) => {
            let found = outcome(released.released);
            // An earlier request that had no answer has probably released it.
            let found = match found {
                Withdrawn::Expired | Withdrawn::NotOwner if reply.in_doubt_before => {
                    Withdrawn::Released
                }
                found => found,
            };
            Ok((found, reply.sent))
        }
        // The replica of the claim is gone, and the end of its session ends the claim. No other replica continues it.
        Err(failed) if failed.kind == Some(Kind::OtherReplica) => {
            Ok((Withdrawn::Expired, reply.sent))
        }
        Err(failed) => Err(failed),
    }
}

fn outcome(found: Outcome) -> Withdrawn {
    match found {
        Outcome::Released => Withdrawn::Released,
        Outcome::LeftQueue => Withdrawn::LeftQueue,
        Outcome::AlreadyExpired => Withdrawn::Expired,
        Outcome::NotOwner => Withdrawn::NotOwner,
    }
}

fn release(claim: &Claim, how: Leave) -> Release {
    let (mode, permit_count) = ModeWord::of(claim.mode);
    Release {
        name: claim.name.clone(),
        how: match how {
            Leave::Release => How::Release,
            Leave::Abandon => How::Abandon,
        },
        mode,
        permit_count,
        lock_delay_ms: millis_up(claim.lock_delay),
        ttl_ms: millis_up(claim.ttl),
    }
}
