//! The end of a claim: withdrawn once in the foreground, and then again and again in the background until that is final.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::state::State;
use crate::engine::{Claim, Leave, Renewal, Withdrawn};
use crate::support::Backoff;
use crate::types::{BootInstant, LossReason, Release, Result, Token};

/// How long a client that is being closed repeats requests to a store that does not answer.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// The shortest and the longest pause after an error of the store.
pub(crate) const AFTER_ERROR: (Duration, Duration) =
    (Duration::from_millis(20), Duration::from_secs(1));

/// Withdraws a claim in the background, if its caller does not know whether it was granted.
pub(crate) fn undo(state: &Arc<State>, claim: &Claim) {
    let (state, claim) = (Arc::clone(state), claim.clone());
    let kept_until = state.clock.now() + claim.ttl;
    let background = Arc::clone(&state.background);
    background.run(async move { insist(&state, &claim, Leave::Release, kept_until).await });
}

/// Withdraws a claim again and again, until that is final or the longest lease that the claim can have has ended: `kept_until`,
/// lock-delay aside.
async fn insist(state: &State, claim: &Claim, how: Leave, kept_until: BootInstant) {
    let begun = state.clock.now();
    let ends = kept_until.max(begun + claim.ttl) + claim.lock_delay;
    let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
    while let Err(error) = state.engine.withdraw(claim, how).await {
        let name = &claim.name;
        let ends = match state.is_closed() {
            true => ends.min(begun + CLOSING),
            false => ends,
        };
        if state.clock.now() >= ends {
            tracing::warn!(%name, %error, "a claim could not be withdrawn; its lease is over, or will end it");
            return;
        }
        if !error.is_retryable() {
            tracing::warn!(%name, %error, "a claim cannot be withdrawn; its lease will end it");
            return;
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

/// Ends a hold: first its renewals, then the claim itself. A withdrawal that the store does not confirm continues in the
/// background.
pub(crate) async fn leave(state: Arc<State>, hold: Arc<Hold>, token: Token) -> Result<Release> {
    state.schedule.remove(&hold).await;
    // In any case: a lease that had already ended has expired, and was not taken away.
    let timely = state.clock.now() < hold.valid_until();
    let valid = timely && hold.lost().is_none();
    let withdrawn = give_back(&state, &hold, valid).await;
    state
        .observed
        .tell(|observer| observer.released(&hold.claim.name, token));
    match withdrawn? {
        Withdrawn::NotOwner if timely => Ok(Release::NotOwner),
        Withdrawn::Released | Withdrawn::LeftQueue if valid => Ok(Release::Released),
        _ => Ok(Release::AlreadyExpired),
    }
}

/// Withdraws the claim of a hold that is no longer renewed, unless that was done already.
async fn give_back(state: &Arc<State>, hold: &Hold, valid: bool) -> Result<Withdrawn> {
    if !hold.may_give_back() {
        return Ok(Withdrawn::Expired);
    }
    if keep(state, hold).await? {
        return Ok(Withdrawn::Released);
    }
    let how = match valid {
        true => Leave::Release,
        false => Leave::Abandon,
    };
    let claim = hold.claim_now();
    let withdrawn = state.engine.withdraw(&claim, how).await;
    if withdrawn.is_err() {
        let claim = claim.into_owned();
        let (state, kept_until) = (Arc::clone(state), hold.kept_until());
        let background = Arc::clone(&state.background);
        background.run(async move { insist(&state, &claim, how, kept_until).await });
    }
    withdrawn
}

/// Makes the store keep a hold for the rest of its `at_least`, without this client: its lease ends by itself. False if no time
/// is left, or if it does not hold.
async fn keep(state: &Arc<State>, hold: &Hold) -> Result<bool> {
    let owes = hold.owes();
    if owes.is_zero() {
        return Ok(false);
    }
    let mut held = hold.held_claim();
    // The store adds the lock-delay, which must not follow a release.
    let lease = owes.saturating_sub(held.claim.lock_delay);
    held.claim.ttl = lease.max(state.promises().min_ttl);
    held.shorten = true;
    hold.note_asked(held.claim.ttl);
    let renewal = state.engine.renew(std::slice::from_ref(&held)).await.pop();
    if matches!(renewal, Some(Renewal::Lost | Renewal::Ended(_))) {
        return Ok(false);
    }
    let client = Arc::downgrade(state);
    let (clock, ends) = (state.clock, state.clock.now() + owes);
    // An engine may keep data of the claim until it is withdrawn. So if the client still exists then, it withdraws the claim.
    state.background.spawn(async move {
        clock.sleep_until(ends).await;
        if let Some(state) = client.upgrade().filter(|state| !state.is_closed()) {
            insist(&state, &held.claim, Leave::Release, ends).await;
        }
    });
    match renewal {
        Some(Renewal::Unknown(error)) => Err(error),
        Some(_) => Ok(true),
        None => Err(state.internal("a renewal had no answer")),
    }
}

/// Gives back a hold that this client has ended although its guards still exist.
pub(crate) async fn abandon(state: Arc<State>, hold: Arc<Hold>) {
    state.schedule.remove(&hold).await;
    if let Err(error) = give_back(&state, &hold, false).await {
        tracing::debug!(name = %hold.claim.name, %error, "giving back what was lost");
    }
}

/// Tells the guards of a hold that it is lost, and then gives it back: the client is being closed.
pub(crate) async fn close(state: Arc<State>, hold: Arc<Hold>) {
    let valid = hold.is_valid();
    state.lose(&hold, LossReason::ClientClosed);
    state.schedule.remove(&hold).await;
    if let Err(error) = give_back(&state, &hold, valid).await {
        tracing::debug!(name = %hold.claim.name, %error, "releasing at close");
    }
}
