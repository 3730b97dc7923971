//! A session deletes the keys of ended holds, while their claims may be placed again.

use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Leave, Standing, Withdrawn};
use fencelock::{BootInstant, Clock, LockName};
use fencelock_testbed::{Etcd, Flow, Proxy};
use futures_util::future::join_all;

use crate::{client, soon, token_of, until};

const TTL: Duration = Duration::from_secs(3);

/// As after a pause of the holders. The session deletes one key after the other, each with a delay, so most keys still exist
/// when their claims are placed again.
#[tokio::test(flavor = "multi_thread")]
async fn claims_that_are_placed_again_while_their_old_keys_are_deleted_keep_what_they_hold() {
    let etcd = Etcd::start().unwrap();
    let near = client(&etcd).await;
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("etcd://127.0.0.1:{}", proxy.port());
    let engine = fencelock::open_engine(&url).await.unwrap();
    let ids = ClaimIds::new().unwrap();
    let claims: Vec<_> = (0..20)
        .map(|n| LockName::new(&format!("lock-{n}")).unwrap())
        .map(|name| Claim::new(ids.next(), "me", name).ttl(TTL))
        .collect();
    let place_all = || join_all(claims.iter().map(|claim| engine.place(claim)));
    let first = soon("the grants", place_all()).await;
    proxy.both(Flow::Delay(Duration::from_millis(30)));
    until("the first old key is gone", async || {
        let looks = claims.iter().map(|claim| near.look(claim.name.as_str()));
        let looks = join_all(looks).await;
        looks
            .iter()
            .any(|view| view.as_ref().unwrap().holders.is_empty())
    })
    .await;
    let begun = Clock::Boot.now();
    let second = soon("new grants", place_all()).await;
    proxy.both(Flow::Pass);
    for (first, second) in first.iter().zip(&second) {
        let (first, second) = (first.as_ref().unwrap(), second.as_ref().unwrap());
        // A claim that still held was given more time, with the token that it has.
        if ended(first, begun) {
            assert!(token_of(second) > token_of(first));
        }
    }
    // All old keys are deleted within this time, which is shorter than the new leases.
    while Clock::Boot.now().since(begun) < TTL - Duration::from_secs(1) {
        for (claim, second) in claims.iter().zip(&second) {
            let view = near.look(claim.name.as_str()).await.unwrap();
            let token = token_of(second.as_ref().unwrap());
            assert_eq!(view.token(), Some(token), "{}", claim.name);
        }
    }
    let releases = claims
        .iter()
        .map(|claim| engine.withdraw(claim, Leave::Release));
    for withdrawn in soon("the releases", join_all(releases)).await {
        assert_eq!(withdrawn.unwrap(), Withdrawn::Released);
    }
    engine.close().await.unwrap();
}

fn ended(standing: &Standing, now: BootInstant) -> bool {
    match standing {
        Standing::Held(grant) => now.since(grant.counted_from) >= grant.lease,
        other => panic!("{other:?}"),
    }
}
