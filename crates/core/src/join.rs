//! Believing in another process's hold: never renewed here, asked about again and again, and lost when the store says so
//! or when nothing was heard for as long as it may be believed.
//!
//! Between two questions the lock is watched, so that a release by the other process is known soon: by what the store
//! tells where it tells of changes, else by looks, a few per second.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::client::Inner;
use crate::engine::{Claim, Engine};
use crate::hold::Hold;
use crate::types::Clock;
use crate::types::{LossReason, Mode};
use crate::wish::vouched;

/// Between two looks at least.
const PAUSE: Duration = Duration::from_millis(300);

/// Watches a joined hold until it is lost or its last guard is gone.
pub(crate) async fn watch(client: Weak<Inner>, hold: Arc<Hold>, clock: Clock) {
    let mut failed = false;
    loop {
        let Some(inner) = client.upgrade() else {
            return;
        };
        // The client may go while its hold is watched: hold on to the engine alone.
        let engine = Arc::clone(&inner.engine);
        drop(inner);
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
        let Some(inner) = client.upgrade() else {
            return;
        };
        let looked = tokio::select! {
            biased;
            () = hold.until(|hold| hold.has_no_guard().then_some(())) => return,
            () = clock.sleep_until(ends) => {
                inner.lose(&hold, LossReason::OuterSilent);
                return;
            }
            looked = vouched(&inner, &hold.claim.name, &hold.claim.owner) => looked,
        };
        failed = looked.is_err();
        match looked {
            Ok(Some((holder, grant)))
                if holder.claim == Some(hold.claim.id) && holder.mode == hold.claim.mode =>
            {
                hold.prolong(grant.counted_from, grant.lease);
            }
            Ok(_) => {
                inner.lose(&hold, LossReason::OuterEnded);
                return;
            }
            Err(error) => tracing::debug!(%error, "looking at a joined hold"),
        }
    }
}

/// Returns once a look does not show the claim as a holder. A look that fails shows nothing.
async fn gone(engine: &dyn Engine, claim: &Claim) {
    // The highest token at the last look, where a change of it tells that the claim is gone.
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
                    // One of several may go and leave the highest token as it is.
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
