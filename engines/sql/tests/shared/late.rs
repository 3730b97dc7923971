//! Requests that arrive late.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, HeldClaim, Leave, Renewal, Standing};
use fencelock_core::{Engine, Mode, StoreUrl, Token};
use fencelock_testbed::{Flow, Proxy};
use tokio::time::sleep;

use super::claim;

async fn open(url: &str) -> Arc<dyn Engine> {
    let engine = crate::engine::connect(StoreUrl::parse(url).unwrap());
    engine.await.unwrap()
}

async fn place(engine: &Arc<dyn Engine>, claim: &Claim) -> Token {
    match engine.place(claim).await.unwrap() {
        Standing::Held(grant) => grant.tokens.first,
        other => panic!("{other:?}"),
    }
}

/// The tokens of those that hold the claim's lock.
async fn holders(engine: &Arc<dyn Engine>, claim: &Claim) -> Vec<Option<Token>> {
    let view = engine.inspect().look(&claim.name).await.unwrap();
    view.holders.iter().map(|holder| holder.token).collect()
}

/// A late request to place a claim does not shorten its lease. A renewal with the token of another grant is lost.
pub(crate) async fn late_requests_do_no_harm(url: &str) {
    let engine = open(url).await;
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

/// A late renewal with an earlier token of the same grant does not take back the token that the holder uses now.
pub(crate) async fn a_late_renewal_does_not_bring_back_an_earlier_token(url: &str) {
    let engine = open(url).await;
    let claim = claim("many", Mode::Exclusive, Duration::from_secs(600)).reserve(4);
    let first = place(&engine, &claim).await;
    let next = Token(first.get() + 1);
    for token in [next, first] {
        let renewed = engine.renew(&[HeldClaim::new(claim.clone(), token)]).await;
        assert!(matches!(renewed[0], Renewal::Kept { .. }), "{renewed:?}");
        assert_eq!(holders(&engine, &claim).await, [Some(next)]);
    }
}

async fn differs_from(before: u64, now: impl Fn() -> u64) {
    while now() == before {
        sleep(Duration::from_millis(2)).await;
    }
}

/// A client reads an expired hold of a claim, and its change comes late: meanwhile another client had the lock, and then the
/// same claim again, whose gate begins with the same version. `proxy` is in front of the server that `url` names, and
/// `through` names the proxy.
pub(crate) async fn a_change_of_a_lock_that_was_read_long_ago_is_not_made(
    url: &str,
    through: &str,
    proxy: &Proxy,
) {
    let through = format!("{through}?response-timeout=20s");
    let (near, far) = (open(url).await, open(&through).await);
    for (round, mode) in [Mode::Exclusive, Mode::Shared, Mode::Exclusive]
        .into_iter()
        .enumerate()
    {
        let name = format!("lock-{round}");
        let again = claim(&name, mode, Duration::from_millis(200));
        place(&near, &again).await;
        while !holders(&near, &again).await.is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
        let late = claim(&name, Mode::Exclusive, Duration::from_secs(60));
        if round == 0 {
            // Prepares the statements of this connection.
            place(&far, &late).await;
            continue;
        }
        proxy.answers(Flow::Hold);
        let mut answered = proxy.answer_bytes();
        let placing = tokio::spawn({
            let (far, late) = (Arc::clone(&far), late.clone());
            async move { far.place(&late).await }
        });
        // It has read the lock when two answers have come. Its next request, the change, stays in the proxy.
        for step in 0..2 {
            differs_from(answered, || proxy.answer_bytes()).await;
            proxy.requests(Flow::Hold);
            let asked = proxy.request_bytes();
            proxy.answers(Flow::Pass);
            differs_from(asked, || proxy.request_bytes()).await;
            if step == 0 {
                answered = proxy.answer_bytes();
                proxy.answers(Flow::Hold);
                proxy.requests(Flow::Pass);
            }
        }
        let between = claim(&name, Mode::Exclusive, Duration::from_secs(60));
        place(&near, &between).await;
        near.withdraw(&between, Leave::Release).await.unwrap();
        let token = place(&near, &again.clone().ttl(Duration::from_secs(60))).await;
        proxy.requests(Flow::Pass);
        let placed = placing.await.unwrap();
        assert!(
            !matches!(placed, Ok(Standing::Held(_))),
            "{mode:?}: {placed:?}"
        );
        let holders = holders(&near, &again).await;
        assert_eq!(holders, [Some(token)], "{mode:?}");
    }
}
