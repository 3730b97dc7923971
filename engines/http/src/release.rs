//! To release, to leave the queue, and to undo what had no answer: `POST /v1/claims/{id}/release`.

use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{Error, Result};
use fencelock_wire::{How, ModeWord, Outcome, Release, Released, millis_up};
use tokio::time::timeout;

use crate::error::Action;
use crate::state::{Request, State};

/// How long an open poll may take to end. The service ends it when the release comes.
const POLL_ENDS: Duration = Duration::from_millis(500);

/// How often a release is sent for a claim whose polls end.
const TRIES: usize = 3;

pub(crate) async fn withdraw(state: &State, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    let key = state.key_of(claim)?;
    let path = format!("/v1/claims/{}/release", claim.id);
    let body = state.json(&release(claim, how))?;
    let action = Action::of("releasing", &claim.name);
    let mut first = None;
    for _ in 0..TRIES {
        // A poll that is open now may come after this release, even if it is answered first.
        let polls = state.entries.open_polls(&claim.id);
        let request = Request {
            ask: State::post(&path, &key.header, &body),
            action,
            claim: Some(&claim.id),
            // Where its poll is, which then ends.
            at: polls.as_ref().map(|(_, at)| *at),
            limit: state.config.response_timeout,
        };
        let reply = state.ask(request).await?;
        let released: Released = state.read(&reply, action)?;
        let withdrawn = *first.get_or_insert(outcome(released.released));
        let Some((mut open, _)) = polls else {
            match state.entries.settle(&claim.id, reply.sent) {
                true => return Ok(withdrawn),
                false => break,
            }
        };
        let ended = timeout(POLL_ENDS, open.wait_for(|open| *open == 0)).await;
        if ended.is_err() {
            break;
        }
    }
    Err(Error::unsettled(&state.config.store, action.text()))
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
