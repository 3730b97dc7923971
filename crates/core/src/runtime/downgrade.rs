//! The downgrade from exclusive to shared mode: a new grant of the same claim.

use std::sync::Arc;
use std::time::Duration;

use super::schedule::end_of;
use super::share::Share;
use crate::engine::{Grant, Renewal, Standing};
use crate::types::{Error, LossReason, Mode, Result};

/// The pause between two attempts while the store does not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// Downgrades an exclusive share. Must not be dropped before its end.
pub(crate) async fn downgrade(share: Share) -> Result<Share> {
    // Work under the exclusive lock ends before any other client is granted it in shared mode.
    share.cancel.cancel();
    let (state, hold) = (&share.state, &share.hold);
    let name = &hold.claim.name;
    // No other task of this owner enters meanwhile.
    let slot = state.owners.slot(&hold.claim.owner, name);
    let _entrance = slot.lock().await;
    if !hold.has_one_guard() {
        let why = "its owner has several guards of it; release the others first";
        return Err(Error::invalid("downgrade of", name.as_str(), why));
    }
    if hold.has_at_least() {
        let why = "a lock that was requested with at_least stays as it is";
        return Err(Error::invalid("downgrade of", name.as_str(), why));
    }
    // In turn with renewals, so that answers come in the order of the requests.
    let Some(renewing) = state.schedule.reserve(hold).await else {
        return Err(hold.lost_error());
    };
    confirm(&share).await?;
    // A request without an answer may make it shared at the store.
    hold.bar_hand_on();
    let grant = place_shared(&share).await?;
    let token = grant.tokens.first;
    hold.seen.close("downgraded");
    hold.seen.end();
    hold.downgrade(token);
    let kept = Renewal::kept(grant.counted_from, grant.lease, false);
    // A kept renewal cannot be a loss.
    let _ = state.schedule.note(hold, &kept, &hold.held_claim());
    renewing.noted();
    // Tasks of this process wait for an exclusive hold, so the next of them goes to the store's queue.
    state.queues.leave(hold);
    state
        .observed
        .tell(|observer| observer.released(name, share.token));
    state.report_grant(hold, token, None, false);
    let shared = Share::new(Arc::clone(state), Arc::clone(hold));
    share.dissolve();
    Ok(shared)
}

/// Asks the store whether it still has the hold. If somebody has taken it away and no event has told so yet, the store would
/// grant the claim anew, perhaps after another holder.
async fn confirm(share: &Share) -> Result<()> {
    let (state, hold) = (&share.state, &share.hold);
    while hold.is_valid() {
        let renewal = state.engine.renew(&[hold.held_claim()]).await.pop();
        let error = match renewal {
            Some(Renewal::Kept { .. }) => return Ok(()),
            Some(Renewal::Lost) => {
                state.lose(hold, LossReason::StoreForgot);
                break;
            }
            Some(Renewal::Ended(kind)) => {
                state.lose(hold, end_of(kind));
                break;
            }
            Some(Renewal::Unknown(error)) => error,
            None => state.internal("a renewal had no answer"),
        };
        if !error.is_retryable() {
            return Err(error);
        }
        pause_after(&error, share).await;
    }
    state.lose(hold, LossReason::Expired);
    Err(hold.lost_error())
}

/// Places the claim in shared mode, again and again while the validity lasts.
async fn place_shared(share: &Share) -> Result<Grant> {
    let (state, hold) = (&share.state, &share.hold);
    let claim = hold
        .claim
        .clone()
        .mode(Mode::Shared)
        .wait(false)
        .reserve(1)
        .record(true);
    loop {
        state.schedule.curtail(hold, claim.ttl);
        let answer = match hold.is_valid() {
            true => state.engine.place(&claim).await,
            false => Ok(Standing::Busy),
        };
        match answer {
            // The store had the hold a moment ago, and it is still valid: no other client was granted the lock in between.
            Ok(Standing::Held(grant)) if hold.is_valid() => return Ok(grant),
            Ok(_) => {
                state.lose(hold, LossReason::Expired);
                return Err(hold.lost_error());
            }
            Err(error) if error.is_retryable() => pause_after(&error, share).await,
            Err(error) => return Err(error),
        }
    }
}

/// Pauses before the next attempt, but no longer than the validity lasts.
async fn pause_after(error: &Error, share: &Share) {
    let (clock, hold) = (share.state.clock, &share.hold);
    tracing::debug!(name = %hold.claim.name, %error, "a downgrade failed; trying again");
    let again = clock.now() + PAUSE;
    clock.sleep_until(again.min(hold.valid_until())).await;
}
