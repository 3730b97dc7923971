//! Requests that arrive late.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, Renewal, Standing};
use fencelock_core::{Engine, Mode, StoreUrl, Token};

use super::claim;

async fn place(engine: &Arc<dyn Engine>, claim: &Claim) -> Token {
    match engine.place(claim).await.unwrap() {
        Standing::Held(grant) => grant.tokens.first,
        other => panic!("{other:?}"),
    }
}

/// A late request to place a claim does not shorten its lease. A renewal with the token of another grant is lost.
pub(crate) async fn late_requests_do_no_harm(url: &str) {
    let engine = crate::engine::connect(StoreUrl::parse(url).unwrap());
    let engine: Arc<dyn Engine> = engine.await.unwrap();
    for (name, mode) in [("alone", Mode::Exclusive), ("beside", Mode::Shared)] {
        let long = claim(name, mode, Duration::from_secs(600));
        let token = place(&engine, &long).await;
        let short = long.clone().ttl(Duration::from_secs(2));
        assert_eq!(place(&engine, &short).await, token, "{name}");
        let view = engine.inspect().look(&long.name).await.unwrap();
        let left = view.holders[0].ttl_left.unwrap();
        assert!(left > Duration::from_secs(300), "{name}: {left:?}");
        for (token, kept) in [
            (Token(token.get() - 16), false),
            (Token(token.get() + 1), false),
            (token, true),
        ] {
            let held = HeldClaim::new(long.clone(), token);
            let renewed = engine.renew(&[held]).await;
            let is_kept = matches!(renewed[0], Renewal::Kept { .. });
            assert_eq!(is_kept, kept, "{name} {token}: {renewed:?}");
        }
    }
}
