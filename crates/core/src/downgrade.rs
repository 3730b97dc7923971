//! From exclusive to shared: a new grant of the same claim.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Claim, Renewal, Standing};
use crate::guard::Guard;
use crate::types::{Error, Result};
use crate::types::{LossReason, Mode};

/// Between two attempts while the store does not answer.
const PAUSE: Duration = Duration::from_millis(50);

/// What [`Guard::downgrade`] does once it is known that it may. Must not be dropped before its end.
pub(crate) async fn downgrade(guard: Guard) -> Result<Guard> {
    let (inner, hold) = (Arc::clone(guard.inner()), Arc::clone(guard.hold()));
    let name = &hold.claim.name;
    // Nobody enters for this owner meanwhile.
    let slot = inner.owners.slot(&hold.claim.owner, name);
    let _entrance = slot.lock().await;
    if !hold.has_one_guard() {
        let why = "its owner has entered it more than once; leave first";
        return Err(Error::invalid("downgrade of", name.as_str(), why));
    }
    // In turn with renewals, so that answers come in the order of the requests.
    let Some(renewing) = inner.keeper.reserve(&hold).await else {
        return Err(guard.lost_error());
    };
    let claim = Claim {
        mode: Mode::Shared,
        wait: false,
        reserve: 1,
        record: true,
        ..hold.claim.clone()
    };
    let grant = loop {
        inner.keeper.curtail(&hold, claim.ttl);
        let answer = match hold.is_valid() {
            true => inner.engine.place(&claim).await,
            false => Ok(Standing::Busy),
        };
        match answer {
            // Valid until now, so that nobody else was granted it in between.
            Ok(Standing::Held(grant)) if hold.is_valid() => break grant,
            Ok(_) => {
                inner.lose(&hold, LossReason::Expired);
                return Err(guard.lost_error());
            }
            Err(error) if error.is_retryable() => {
                tracing::debug!(%name, %error, "a downgrade failed; trying again");
                let again = inner.clock.now() + PAUSE;
                inner.clock.sleep_until(again.min(hold.valid_until())).await;
            }
            Err(error) => return Err(error),
        }
    };
    let token = grant.tokens.first;
    hold.downgrade(token);
    let kept = Renewal::Kept {
        counted_from: grant.counted_from,
        lease: grant.lease,
        asked: false,
    };
    inner.keeper.note(&inner, &hold, &kept, &hold.held_claim());
    renewing.noted();
    // It is not what tasks of this process wait for in line any more: the next of them goes and stands in the store's.
    inner.lines.leave(&inner, &hold);
    inner.observe(|observer| observer.released(name, guard.token()));
    inner.observe_grant(name, token, None, false);
    let shared = Guard::new(Arc::clone(&inner), Arc::clone(&hold));
    guard.dissolve();
    Ok(shared)
}
