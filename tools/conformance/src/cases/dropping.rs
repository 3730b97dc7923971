//! A drop at any moment leaves neither a lock nor a place in the queue.

use std::future::{Future, poll_fn};
use std::iter::once;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use fencelock::{Client, Release};
use fencelock_testbed::Flow;
use futures_util::future::Either;
use tokio::time::Instant;

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(a_request_dropped_at_any_moment),
    case!(a_wait_dropped_at_any_moment),
    case!(a_release_dropped_at_any_moment),
    case!(everything_dropped_over_a_slow_network).server(),
    case!(a_dropped_guard_releases),
    case!(a_with_dropped_in_its_body),
    case!(a_panic_in_a_body_releases),
    // Where a hold ends with its connection, it ends with the runtime that serves the connection.
    case!(a_runtime_that_is_gone_holds_for_a_lease_at_most)
        .promised(|promises| promises.lease != fencelock::LeaseKind::Connection),
];

/// How a future is stopped: after a number of polls, or after a time.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Polls(u32),
    After(Duration),
}

/// Stops before, during and after each possible call to the store: by polls, and by time in steps shorter than a call.
fn stops() -> impl Iterator<Item = Stop> {
    let polls = (0..6).map(Stop::Polls);
    let times = (0..40).map(|step| Stop::After(Duration::from_micros(step * step * 8)));
    polls.chain(times)
}

/// Runs a future until it is stopped. Returns its output if it ends before.
async fn stopped<T>(stop: Stop, future: impl Future<Output = T>) -> Option<T> {
    match stop {
        Stop::Polls(most) => {
            let mut future = pin!(future);
            let mut polls = 0;
            poll_fn(|cx| {
                if polls == most {
                    return Poll::Ready(None);
                }
                polls += 1;
                // Polls again at once, even without a wake-up.
                cx.waker().wake_by_ref();
                future.as_mut().poll(cx).map(Some)
            })
            .await
        }
        Stop::After(time) => {
            let alarm = pin!(spin(time));
            match futures_util::future::select(alarm, pin!(future)).await {
                Either::Left(_) => None,
                Either::Right((result, _)) => Some(result),
            }
        }
    }
}

/// tokio's timers have a resolution of a millisecond.
async fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

/// How long it takes until the lock is free.
async fn free_after(client: &Client, name: &str) -> Duration {
    let begin = Instant::now();
    let guard = soon("the lock after a dropped future", client.lock(name))
        .await
        .unwrap();
    let took = begin.elapsed();
    guard.release().await.unwrap();
    took
}

/// Runs rounds that return how long the lock was not free. It must be free before a lease or a claim window could end.
/// A busy machine may be late a few times. What a drop left behind delays the same round each time, or many rounds.
async fn each_is_free_at_once(
    ctx: &Ctx,
    stops: impl Iterator<Item = Stop>,
    mut round: impl AsyncFnMut(Stop) -> Duration,
) {
    let mut late = Vec::new();
    for stop in stops {
        for again in 0.. {
            let took = round(stop).await;
            if took < ctx.at_once() {
                break;
            }
            late.push((stop, took));
            assert!(again < 2 && late.len() < 6, "free only late: {late:?}");
        }
    }
}

async fn a_request_dropped_at_any_moment(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    each_is_free_at_once(&ctx, stops(), async |stop| {
        drop(stopped(stop, one.lock(&name).into_future()).await);
        let first = free_after(&two, &name).await;
        drop(stopped(stop, one.try_lock(&name).into_future()).await);
        first.max(free_after(&two, &name).await)
    })
    .await;
    ctx.await_nothing_left().await;
}

async fn a_wait_dropped_at_any_moment(ctx: Ctx) {
    let (one, two, three) = (ctx.client().await, ctx.client().await, ctx.client().await);
    let name = ctx.name();
    each_is_free_at_once(&ctx, stops(), async |stop| {
        let guard = take(&one, &name).await;
        let before = stopped(stop, two.lock(&name).into_future()).await;
        assert!(before.is_none(), "{stop:?}: {before:?}");
        // The release may come while the waiter is leaving the queue: the store hands the lock over to a waiter that
        // has gone.
        guard.release().await.unwrap();
        free_after(&three, &name).await
    })
    .await;
    // Dropped while the lock is being handed over.
    each_is_free_at_once(&ctx, stops(), async |stop| {
        let guard = take(&one, &name).await;
        let waiter = wait_for(&two, &name);
        ctx.await_queued(&one, &name, 1).await;
        let released = tokio::spawn(guard.release());
        stopped(stop, std::future::pending::<()>()).await;
        waiter.abort();
        // Ended by now. If the waiter got a guard, it is dropped here.
        drop(waiter.await);
        soon("the release", released).await.unwrap().unwrap();
        free_after(&three, &name).await
    })
    .await;
    ctx.await_nothing_left().await;
}

async fn a_release_dropped_at_any_moment(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    each_is_free_at_once(&ctx, stops(), async |stop| {
        let guard = take(&one, &name).await;
        let released = stopped(stop, guard.release()).await;
        assert!(
            matches!(released, None | Some(Ok(Release::Released))),
            "{released:?}"
        );
        free_after(&two, &name).await
    })
    .await;
    ctx.await_nothing_left().await;
}

/// With a slow network, so that the drops come before, during and after each exchange with the server.
async fn everything_dropped_over_a_slow_network(ctx: Ctx) {
    let (far, near, name) = (ctx.proxied().await, ctx.client().await, ctx.name());
    let delay = Duration::from_millis(6);
    ctx.server().proxy().both(Flow::Delay(delay));
    let moments = (0..14).map(|step| Stop::After(delay * step / 3));
    each_is_free_at_once(&ctx, moments, async |moment| {
        drop(stopped(moment, far.lock(&name).into_future()).await);
        let mut took = free_after(&near, &name).await;
        drop(stopped(moment, far.try_lock(&name).recorded().into_future()).await);
        took = took.max(free_after(&near, &name).await);
        let guard = take(&near, &name).await;
        drop(stopped(moment, far.lock(&name).into_future()).await);
        guard.release().await.unwrap();
        took = took.max(free_after(&near, &name).await);
        let guard = take(&far, &name).await;
        drop(stopped(moment, guard.sequencer()).await);
        drop(stopped(moment, guard.refresh(Duration::from_secs(30))).await);
        drop(stopped(moment, guard.release()).await);
        took.max(free_after(&near, &name).await)
    })
    .await;
    ctx.await_nothing_left().await;
}

async fn a_dropped_guard_releases(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    each_is_free_at_once(&ctx, once(Stop::Polls(0)), async |_| {
        let guard = take(&one, &name).await;
        let waiter = wait_for(&two, &name);
        ctx.await_queued(&one, &name, 1).await;
        let begin = Instant::now();
        drop(guard);
        drop(got("the waiter after a drop", waiter).await);
        begin.elapsed()
    })
    .await;
    ctx.await_nothing_left().await;
}

async fn a_with_dropped_in_its_body(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    each_is_free_at_once(&ctx, once(Stop::Polls(0)), async |_| {
        let (entered, inside) = tokio::sync::oneshot::channel();
        let body = {
            let (one, name) = (one.clone(), name.clone());
            tokio::spawn(async move {
                one.with(&name, |_held| async {
                    entered.send(()).unwrap();
                    std::future::pending::<()>().await;
                })
                .await
            })
        };
        soon("the body begins", inside).await.unwrap();
        body.abort();
        free_after(&two, &name).await
    })
    .await;
    let seven = one
        .with(&name, |held| async move { held.is_valid().then_some(7) })
        .await;
    assert_eq!(seven.unwrap(), Some(7));
    ctx.await_nothing_left().await;
}

async fn a_panic_in_a_body_releases(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    each_is_free_at_once(&ctx, once(Stop::Polls(0)), async |_| {
        let body = {
            let (one, name) = (one.clone(), name.clone());
            tokio::spawn(async move {
                one.with(&name, |_held| async {
                    // Without the message that a panic prints.
                    std::panic::resume_unwind(Box::new("out of the body"));
                })
                .await
            })
        };
        let ended = soon("the body ends", body).await;
        assert!(
            ended.unwrap_err().is_panic(),
            "the panic must reach the caller"
        );
        free_after(&two, &name).await
    })
    .await;
    ctx.await_nothing_left().await;
}

async fn a_runtime_that_is_gone_holds_for_a_lease_at_most(ctx: Ctx) {
    let (two, name) = (ctx.client().await, ctx.name());
    let ttl = ctx.ttl(700);
    let ctx = std::sync::Arc::new(ctx);
    let (theirs, of) = (std::sync::Arc::clone(&ctx), name.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let guard = runtime.block_on(async {
            let one = theirs.client().await;
            one.lock(&of).ttl(ttl).await.unwrap()
        });
        runtime.shutdown_background();
        guard
    });
    let guard = soon(
        "the thread's end",
        tokio::task::spawn_blocking(|| thread.join()),
    )
    .await;
    let guard = guard.unwrap().unwrap();
    let next = soon("the lock after the lease", two.lock(&name))
        .await
        .unwrap();
    assert!(!guard.is_valid(), "two believe to hold");
    // Without its runtime it neither blocks nor panics.
    drop(guard);
    assert!(next.is_valid());
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}
