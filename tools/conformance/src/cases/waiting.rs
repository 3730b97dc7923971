//! The ways of waiting, and their ends.

use std::time::Duration;

use fencelock::{Error, Promises, Release};
use tokio::time::Instant;

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, until, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(patience_ends),
    case!(patience_is_rewarded),
    case!(attempts_are_counted),
    case!(max_hold_ends_a_hold),
    case!(a_hold_is_kept_by_renewal),
    case!(without_renewal_refresh_prolongs),
    case!(without_renewal_waiting_uses_up_nothing_of_the_ttl)
        .promised(|promises| beyond_a_window(promises) <= promises.max_ttl),
    case!(a_refresh_may_shorten),
];

/// A ttl of which a claim window is a small part.
fn beyond_a_window(promises: &Promises) -> Duration {
    let ttl = (promises.claim_window * 4).max(Duration::from_secs(4));
    ttl.max(promises.min_ttl)
}

async fn patience_ends(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    // Longer than an answer takes on a busy machine. Without an answer the error would be another one.
    let patience = Duration::from_millis(2200);
    for client in [&two, &one] {
        let begin = Instant::now();
        let error = soon("the patience ends", client.lock(&name).timeout(patience))
            .await
            .unwrap_err();
        let Error::TimedOut {
            name: of, waited, ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!((of.as_str(), *waited), (name.as_str(), patience));
        assert!(begin.elapsed() >= patience);
    }
    // Nor is a place in the queue left: the next release is not a hand-off.
    ctx.await_queued(&one, &name, 0).await;
    guard.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn patience_is_rewarded(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let waiter = {
        let name = name.clone();
        tokio::spawn(async move { two.lock(&name).timeout(Duration::from_secs(20)).await })
    };
    ctx.await_queued(&one, &name, 1).await;
    guard.release().await.unwrap();
    got("the lock within the patience", waiter)
        .await
        .release()
        .await
        .unwrap();
}

async fn attempts_are_counted(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let delay = Duration::from_millis(60);
    let begin = Instant::now();
    let request = two.lock(&name).attempts(4).delays(delay, delay);
    let error = soon("the attempts end", request).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    // Four attempts, three pauses.
    assert!(begin.elapsed() >= delay * 3, "{:?}", begin.elapsed());
    guard.release().await.unwrap();
    let request = two.lock(&name).attempts(1);
    soon("one attempt at a free lock", request)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    ctx.await_nothing_left().await;
}

async fn max_hold_ends_a_hold(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let most = Duration::from_millis(2500);
    let begin = Instant::now();
    let guard = one
        .lock(&name)
        .ttl(ctx.ttl(2000))
        .max_hold(most)
        .await
        .unwrap();
    let waiter = wait_for(&two, &name);
    soon("the longest hold is over", guard.lost()).await;
    let held = begin.elapsed();
    assert!(held >= most, "lost after {held:?}");
    assert!(!guard.is_valid());
    drop(guard);
    got("the next has it", waiter)
        .await
        .release()
        .await
        .unwrap();
}

async fn a_hold_is_kept_by_renewal(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2500);
    let guard = one.lock(&name).ttl(ttl).await.unwrap();
    let begin = Instant::now();
    let mut last = guard.valid_until();
    // The last renewal of these comes after the end of the first lease.
    while begin.elapsed() < ttl {
        let prolonged = soon("a renewal", guard.prolonged()).await;
        assert!(prolonged > last, "{prolonged:?} after {last:?}");
        last = prolonged;
        assert!(guard.is_valid() && guard.remaining() <= ttl);
        let held = two.try_lock(&name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

async fn without_renewal_refresh_prolongs(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2000);
    let guard = one.lock(&name).ttl(ttl).renew(false).await.unwrap();
    let first_end = Instant::now() + ttl;
    let left = guard.ttl().await.unwrap().expect("the store keeps it");
    assert!(left <= ttl && !left.is_zero(), "{left:?}");
    let long = ttl * 3;
    guard.refresh(long).await.unwrap();
    let left = guard.ttl().await.unwrap().expect("the store keeps it");
    assert!(left > ttl && left <= long, "{left:?}");
    tokio::time::sleep_until(first_end + Duration::from_millis(200)).await;
    assert!(guard.is_valid());
    let held = two.try_lock(&name).await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    soon("its end", guard.lost()).await;
    // A loss is final.
    let error = guard.refresh(long).await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let next = got("the lock after the lease", wait_for(&two, &name)).await;
    assert_eq!(guard.ttl().await.unwrap(), None);
    next.release().await.unwrap();
}

/// The grant that a store pushes lasts for the claim window at first.
async fn without_renewal_waiting_uses_up_nothing_of_the_ttl(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = beyond_a_window(ctx.promises());
    let guard = take(&one, &name).await;
    let waiter = {
        let name = name.clone();
        tokio::spawn(async move { two.lock(&name).ttl(ttl).renew(false).await })
    };
    ctx.await_queued(&one, &name, 1).await;
    guard.release().await.unwrap();
    let guard = got("the lock", waiter).await;
    assert!(
        guard.remaining() > ttl / 2,
        "{:?} of {ttl:?}",
        guard.remaining()
    );
    guard.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn a_refresh_may_shorten(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    // Longer than the case waits for the next holder.
    let long = Duration::from_secs(120);
    let guard = one.lock(&name).ttl(long).renew(false).await.unwrap();
    let short = ctx.ttl(2500);
    // A renewal waits a quarter of the ttl for its answer, which is less than a busy machine may need.
    until("the refresh is answered", async || {
        match guard.refresh(short).await {
            Ok(()) => true,
            Err(Error::Unavailable { .. }) => false,
            Err(other) => panic!("{other:?}"),
        }
    })
    .await;
    assert!(guard.remaining() <= short);
    std::mem::forget(guard);
    let next = got("the lock after the shorter lease", wait_for(&two, &name)).await;
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}
