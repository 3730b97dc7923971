//! A hold of another process that this one has joined. This process never renews it, but reads its state again and again. The
//! hold is lost when the store says so, or when its validity ends without an answer.
//!
//! Between two such requests this process watches the lock, so that it learns soon when the other process releases. If the store
//! sends messages, it waits for one; otherwise it looks a few times per second.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::hold::{Hold, valid_until};
use super::state::State;
use crate::engine::{Claim, Engine, Grant, HolderView};
use crate::types::{Clock, LockName, LossReason, Mode, Result};

/// The least pause between two looks.
const PAUSE: Duration = Duration::from_millis(300);

/// The hold of an owner in another process, if this process may believe in it.
pub(crate) async fn attested(
    state: &State,
    name: &LockName,
    owner: &str,
) -> Result<Option<(HolderView, Grant)>> {
    let attested = state.engine.inspect().attest(name, owner).await?;
    let now = state.clock.now();
    Ok(attested.filter(|(_, grant)| now < valid_until(grant.counted_from, grant.lease)))
}

/// Watches a joined hold until it is lost or its last guard is dropped.
pub(crate) async fn watch(client: Weak<State>, hold: Arc<Hold>, clock: Clock) {
    let mut failed = false;
    loop {
        // The client may be dropped while its hold is watched, so keep only the engine.
        let Some(engine) = client.upgrade().map(|state| Arc::clone(&state.engine)) else {
            return;
        };
        let ends = hold.valid_until();
        let left = hold.remaining();
        let pause = if failed { left / 10 } else { left / 3 };
        let next = clock.now() + pause.max(Duration::from_millis(10));
        tokio::select! {
            () = hold.until(|hold| hold.has_no_guard().then_some(())) => return,
            () = clock.sleep_until(next.min(ends)) => {}
            () = gone(&*engine, &hold.claim) => {}
        }
        drop(engine);
        let Some(state) = client.upgrade() else {
            return;
        };
        let found = tokio::select! {
            biased;
            () = hold.until(|hold| hold.has_no_guard().then_some(())) => return,
            () = clock.sleep_until(ends) => {
                state.lose(&hold, LossReason::OuterSilent);
                return;
            }
            found = attested(&state, &hold.claim.name, &hold.claim.owner) => found,
        };
        failed = found.is_err();
        match found {
            Ok(Some((holder, grant)))
                if holder.claim == Some(hold.claim.id) && holder.mode == hold.claim.mode =>
            {
                hold.prolong(grant.counted_from, grant.lease);
            }
            Ok(_) => {
                state.lose(&hold, LossReason::OuterEnded);
                return;
            }
            Err(error) => tracing::debug!(%error, "asking about a joined hold"),
        }
    }
}

/// Returns once a look does not show the claim as a holder. A look that fails proves nothing.
async fn gone(engine: &dyn Engine, claim: &Claim) {
    // The highest token at the last look, if a change of it shows that the claim is gone.
    let mut seen = None;
    loop {
        tokio::time::sleep(PAUSE).await;
        let looked = match seen {
            None => engine.inspect().look(&claim.name).await,
            Some(seen) => engine.inspect().watch(&claim.name, seen).await,
        };
        seen = match looked {
            Ok(view) => {
                let mut holders = view.holders.iter();
                if !holders.any(|holder| holder.claim == Some(claim.id)) {
                    return;
                }
                match claim.mode {
                    Mode::Exclusive => Some(view.token()),
                    // One of several holders may end without a change of the highest token.
                    Mode::Shared | Mode::Permit { .. } => None,
                }
            }
            Err(error) => {
                tracing::debug!(%error, "watching a joined hold");
                None
            }
        };
    }
}
