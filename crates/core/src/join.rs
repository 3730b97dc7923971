//! Believing in another process's hold: looked at again and again, never renewed, lost when the store says so or when
//! nothing was heard for as long as it may be believed.

use std::sync::Weak;
use std::time::Duration;

use crate::client::Inner;
use crate::clock::Clock;
use crate::hold::Hold;
use crate::wish::vouched;

/// Watches a joined hold until it is lost or nobody believes in it any more.
pub(crate) async fn watch(client: Weak<Inner>, hold: Weak<Hold>, clock: Clock) {
    let mut failed = false;
    loop {
        let Some(hold_now) = hold.upgrade() else {
            return;
        };
        let ends = hold_now.valid_until();
        let left = hold_now.remaining();
        drop(hold_now);
        let pause = if failed { left / 10 } else { left / 3 };
        let pause = pause.max(Duration::from_millis(10));
        clock.sleep_until((clock.now() + pause).min(ends)).await;
        let (Some(inner), Some(hold)) = (client.upgrade(), hold.upgrade()) else {
            return;
        };
        let looked = tokio::select! {
            biased;
            () = clock.sleep_until(ends) => {
                inner.lose(&hold, "nothing was heard of the outer process's hold in time");
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
                inner.lose(&hold, "the outer process holds it no more as it did");
                return;
            }
            Err(error) => tracing::debug!(%error, "looking at a joined hold"),
        }
    }
}
