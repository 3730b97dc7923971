//! Planted bugs, for the test that shows that torture finds them (tools/torture/planted). A replica must not do what they do.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Engine;
use fencelock_core::engine::{Claim, Grant, HeldClaim, Leave};
use fencelock_core::planted::is;

/// `gateway-confirms`: prolongs a grant that the store has pushed, which only the client may do.
pub(crate) async fn confirm(engine: &Arc<dyn Engine>, claim: &Claim, ttl: Duration, grant: &Grant) {
    if is("gateway-confirms") {
        let held = HeldClaim::new(claim.clone().ttl(ttl), grant.tokens.first);
        drop(engine.renew(&[held]).await);
    }
}

/// `gateway-withdraws`: withdraws a waiter that has not asked again, which may still be served by another replica.
pub(crate) fn withdraw(engine: &Arc<dyn Engine>, claim: Option<Claim>) {
    if let Some(claim) = claim.filter(|_| is("gateway-withdraws")) {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { drop(engine.withdraw(&claim, Leave::Release).await) });
    }
}
