//! Holds that the client ends while their guards exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencelock::{Error, LeaseKind, LossReason, Promises, Release};
use tokio::time::Instant;

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(the_longest_hold_ends_in_time),
    case!(an_unhealthy_holder_loses_the_lock),
    case!(an_unhealthy_holder_leaves_its_lock_delay).promised(delays),
    case!(at_least_keeps_a_lock_after_its_release).promised(|promises| !is_bound(promises)),
    case!(at_least_is_refused_where_a_lock_ends_with_its_client).promised(is_bound),
];

/// Whether a lock ends with the session or connection of its client.
fn is_bound(promises: &Promises) -> bool {
    promises.lease != LeaseKind::Lease
}

fn delays(promises: &Promises) -> bool {
    promises.lock_delay
}

/// The ttl is long, so that the end of the lease does not free the lock.
async fn the_longest_hold_ends_in_time(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let most = Duration::from_millis(1500);
    let begin = Instant::now();
    let request = one.lock(&name).max_hold(most);
    let guard = soon("the lock", request).await.unwrap();
    let waiter = wait_for(&two, &name);
    let why = soon("its end", guard.lost()).await;
    assert_eq!(why, LossReason::MaxHold);
    let next = got("the next has it", waiter).await;
    let after = begin.elapsed();
    assert!(after >= most, "after {after:?}");
    let latest = most + Duration::from_secs(10);
    assert!(after < latest, "only after {after:?}");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert!(next.is_valid());
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn an_unhealthy_holder_loses_the_lock(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let ttl = ctx.ttl(2000);
    let healthy = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&healthy);
    let request = one.lock(&name).ttl(ttl);
    let request = request.healthy(move || asked.load(Ordering::SeqCst));
    let guard = soon("the lock", request).await.unwrap();
    let other = take(&one, &format!("{name}/other")).await;
    for _ in 0..2 {
        soon("a renewal while it is healthy", guard.prolonged()).await;
    }
    assert!(guard.is_valid());
    healthy.store(false, Ordering::SeqCst);
    let waiter = wait_for(&two, &name);
    let why = soon("the loss", guard.lost()).await;
    assert_eq!(why, LossReason::Unhealthy);
    // The process runs, its connection is open, and the guard was not dropped.
    let next = got("the next has it", waiter).await;
    assert!(!guard.is_valid());
    assert!(other.is_valid(), "other holds of the process go on");
    assert!(next.token() > guard.token());
    drop(guard);
    next.release().await.unwrap();
    other.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn an_unhealthy_holder_leaves_its_lock_delay(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let delay = Duration::from_millis(800);
    let request = one.lock(&name).ttl(ctx.ttl(300)).lock_delay(delay);
    let guard = soon("the lock", request.healthy(|| false)).await.unwrap();
    let waiter = wait_for(&two, &name);
    let ends = guard.valid_until();
    soon("the loss", guard.lost()).await;
    let next = got("the lock after the lock-delay", waiter).await;
    let after = fencelock::Clock::Boot.now().since(ends);
    assert!(after >= delay, "had {after:?} after the end of validity");
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn at_least_keeps_a_lock_after_its_release(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let at_least = ctx.ttl(2500);
    // Times longer and shorter than the ttl, by a client that stays and by one that does not.
    for (ttl, stays) in [(ctx.ttl(10_000), true), (ctx.ttl(1500), false)] {
        let begin = Instant::now();
        let client = ctx.client().await;
        let request = client.lock(&name).ttl(ttl).at_least(at_least);
        let guard = soon("the lock", request).await.unwrap();
        let granted = Instant::now();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        if !stays {
            soon("the end of the client", client.close()).await.unwrap();
        }
        let view = one.look(&name).await.unwrap();
        assert_eq!(view.holders.len(), 1, "{view:?}");
        let refused = two.try_lock(&name).await;
        assert!(matches!(refused, Err(Error::Held { .. })), "{refused:?}");
        let next = got("the lock after that time", wait_for(&two, &name)).await;
        let (from_begin, from_grant) = (begin.elapsed(), granted.elapsed());
        assert!(from_begin >= at_least, "free after {from_begin:?}");
        // Less than the longer ttl.
        let most = at_least + Duration::from_secs(5);
        assert!(from_grant < most, "free only after {from_grant:?}");
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
    ctx.await_nothing_left().await;
}

async fn at_least_is_refused_where_a_lock_ends_with_its_client(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let request = client.lock(&name).at_least(Duration::from_secs(1));
    let error = soon("an answer", request).await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("at_least: "), "{error}");
    ctx.await_nothing_left().await;
}
