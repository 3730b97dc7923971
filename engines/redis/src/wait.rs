use fencelock_core::engine::{Claim, Grant, Place};
use fencelock_core::{Clock, Result, Token, Tokens};

use crate::acquire::{ready, window};
use crate::servers::Servers;

/// Waits for a grant; `None` when the claim should be placed again.
pub(crate) async fn wait(servers: &Servers, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
    let state = &servers.state;
    let Some(entry) = state.entries.find(&claim.id) else {
        Clock::Boot.sleep_until(place.recheck).await;
        return Ok(None);
    };
    let Some((pushed, asked_at)) = entry.next().await else {
        return Ok(None);
    };
    let window = window(servers, claim);
    let late = Clock::Boot.now().since(asked_at) > window.mul_f64(0.75);
    // With a lock-delay, with little time left, or if replicas must have the grant, the claim is placed again, which confirms
    // it.
    if late || !claim.lock_delay.is_zero() || state.config.replicas > 0 {
        return Ok(None);
    }
    // The script of another client granted the lock, and that client may have another delay. Placing the claim again waits for
    // this client's delay.
    let slot = state.keys(&claim.name).slot;
    if state.config.delays() && ready(servers, slot).await.is_err() {
        return Ok(None);
    }
    state.entries.remove(&claim.id);
    state.contention.of(&claim.name).raise();
    let tokens = Tokens::new(Token(pushed.first), pushed.count.max(1));
    Ok(Some(Grant::new(tokens, asked_at, window)))
}
