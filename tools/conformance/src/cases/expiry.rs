//! Leases end, and the client knows first.

use std::time::Duration;

use fencelock::{Client, Clock, Error, Promises, Release};
use tokio::time::Instant;

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(the_client_knows_first),
    case!(a_late_release_spares_the_next),
    case!(a_release_says_what_it_found),
    case!(a_lock_delay_follows_a_loss).promised(delays),
    case!(a_release_needs_no_lock_delay).promised(delays),
    case!(a_late_release_leaves_the_lock_delay).promised(delays),
    case!(a_body_is_stopped_when_the_lock_is_lost),
];

fn delays(promises: &Promises) -> bool {
    promises.lock_delay
}

async fn the_client_knows_first(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    for _ in 0..5 {
        let begin = Clock::Boot.now();
        let ttl = ctx.ttl(200);
        let guard = soon("the lock", one.lock(&name).ttl(ttl).renew(false))
            .await
            .unwrap();
        assert!(guard.valid_until() > begin);
        assert!(guard.remaining() < ttl);
        let waiter = wait_for(&two, &name);
        soon("the end of validity", guard.lost()).await;
        let heard = Clock::Boot.now();
        assert!(heard >= guard.valid_until() && !guard.is_valid());
        let next = got("the next has it", waiter).await;
        let granted = Clock::Boot.now();
        assert!(
            guard.valid_until() < granted,
            "granted while another was valid"
        );
        next.release().await.unwrap();
    }
}

async fn a_late_release_spares_the_next(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    for dropped in [false, true] {
        let request = one.lock(&name).ttl(ctx.ttl(200)).renew(false);
        let late = soon("the lock", request).await.unwrap();
        let next = got("the next has it", wait_for(&two, &name)).await;
        if dropped {
            drop(late);
            // The drop releases in the background, so a later release of this client comes after it.
            let other = take(&one, &format!("{name}/other")).await;
            other.release().await.unwrap();
        } else {
            let release = late.release().await.unwrap();
            assert!(
                matches!(release, Release::NotOwner | Release::AlreadyExpired),
                "{release:?}"
            );
        }
        assert!(next.is_valid());
        next.sequencer().await.unwrap();
        let view = two.look(&name).await.unwrap();
        assert_eq!(view.token(), Some(next.token()));
        let held = one.try_lock(&name).await;
        assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
    ctx.await_nothing_left().await;
}

async fn a_release_says_what_it_found(ctx: Ctx) {
    let (one, name) = (ctx.client().await, ctx.name());
    let guard = one
        .lock(&name)
        .ttl(ctx.ttl(100))
        .renew(false)
        .await
        .unwrap();
    soon("its end", guard.lost()).await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    let guard = take(&one, &name).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

async fn a_lock_delay_follows_a_loss(ctx: Ctx) {
    let clients = [&ctx.client().await, &ctx.client().await];
    let (name, ttl) = (ctx.name(), ctx.ttl(200));
    // With and without a waiter: no claim is granted before ttl and lock-delay are over.
    for in_line in [false, true] {
        let mut rounds = 1;
        // A round shows nothing if the loss is noticed too late.
        while !a_lock_delay_keeps_out(clients, &name, ttl, in_line).await {
            assert!(rounds < 5, "the machine is too slow for this case");
            rounds += 1;
        }
    }
    ctx.await_nothing_left().await;
}

/// Returns whether the loss was noticed before the end of the lock-delay.
async fn a_lock_delay_keeps_out(
    [one, two]: [&Client; 2],
    name: &str,
    ttl: Duration,
    in_line: bool,
) -> bool {
    let delay = Duration::from_millis(600);
    let begin = Instant::now();
    let request = one.lock(name).ttl(ttl).lock_delay(delay).renew(false);
    let guard = request.await.unwrap();
    let waiter = in_line.then(|| wait_for(two, name));
    soon("its end", guard.lost()).await;
    let in_time = begin.elapsed() <= ttl + delay;
    // The holder disappears.
    std::mem::forget(guard);
    let waiter = waiter.unwrap_or_else(|| wait_for(two, name));
    let next = got("the lock after the lock-delay", waiter).await;
    let waited = begin.elapsed();
    assert!(waited >= ttl + delay, "had after {waited:?}");
    next.release().await.unwrap();
    in_time
}

async fn a_release_needs_no_lock_delay(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let delay = Duration::from_secs(60);
    for in_line in [false, true] {
        let guard = one.lock(&name).lock_delay(delay).await.unwrap();
        let mut waiter = None;
        if in_line {
            waiter = Some(wait_for(&two, &name));
            ctx.await_queued(&one, &name, 1).await;
        }
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let waiter = waiter.unwrap_or_else(|| wait_for(&two, &name));
        got("the lock at once", waiter)
            .await
            .release()
            .await
            .unwrap();
    }
    // The lock is handed over, with a lock-delay of its own.
    let guard = take(&one, &name).await;
    let waiter = {
        let (two, name) = (two.clone(), name.clone());
        tokio::spawn(async move { two.lock(&name).lock_delay(delay).await })
    };
    ctx.await_queued(&one, &name, 1).await;
    guard.release().await.unwrap();
    let next = got("the lock with a lock-delay", waiter).await;
    assert_eq!(next.release().await.unwrap(), Release::Released);
    ctx.await_nothing_left().await;
}

/// A release after the end of the validity is reported as late.
async fn a_late_release_leaves_the_lock_delay(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let (ttl, delay) = (ctx.ttl(200), Duration::from_millis(800));
    let begin = Instant::now();
    let guard = one
        .lock(&name)
        .ttl(ttl)
        .lock_delay(delay)
        .renew(false)
        .await
        .unwrap();
    let waiter = wait_for(&two, &name);
    soon("its end", guard.lost()).await;
    let lost = Instant::now();
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    let next = got("the lock after the lock-delay", waiter).await;
    // The delay counts from the loss, or goes on as if there were no release.
    let (since_begin, since_loss) = (begin.elapsed(), lost.elapsed());
    assert!(
        since_begin >= ttl + delay || since_loss >= delay,
        "had after {since_begin:?}, {since_loss:?} after the loss"
    );
    next.release().await.unwrap();
}

async fn a_body_is_stopped_when_the_lock_is_lost(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let request = one.lock(&name).ttl(ctx.ttl(200)).renew(false);
    let ended = soon(
        "the body is stopped",
        request.with(|_held| std::future::pending::<()>()),
    )
    .await;
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, Error::Lost { name: of, .. } if of.as_str() == name),
        "{error:?}"
    );
    got("the next has it", wait_for(&two, &name))
        .await
        .release()
        .await
        .unwrap();
    let done = one.with(&name, |held| async move {
        not_for("a loss", Duration::from_millis(100), held.lost()).await;
        held.token()
    });
    soon("a body that ends", done).await.unwrap();
}
