//! First come, first served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fencelock::{Error, Order, Promises};

use tokio::time::{Instant, sleep};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(waiters_are_served_in_order).promised(fifo),
    case!(waiters_have_equal_shares).promised(fifo).busy(),
    case!(a_waiter_that_goes_away_leaves_the_queue).promised(fifo),
    case!(unfair_requests_join_no_queue),
];

fn fifo(promises: &Promises) -> bool {
    promises.order == Order::Fifo
}

async fn waiters_are_served_in_order(ctx: Ctx) {
    let (holder, name) = (ctx.client().await, ctx.name());
    let guard = take(&holder, &name).await;
    let mut waiters = Vec::new();
    for count in 1..=6 {
        waiters.push(wait_for(&ctx.client().await, &name));
        ctx.await_queued(&holder, &name, count).await;
    }
    let mut last = guard.token();
    guard.release().await.unwrap();
    while !waiters.is_empty() {
        let first = got("the first in the queue is served", waiters.remove(0)).await;
        assert!(first.token() > last);
        last = first.token();
        for later in &waiters {
            assert!(!later.is_finished(), "a later one was served before");
        }
        first.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

/// How many processes compete for turns.
const WORKERS: usize = 4;
/// When one of them has had so many turns, all stop.
const TURNS: usize = 50;

/// Processes that request the lock again right after their release get the same number of turns. A busy machine may cost
/// one of them its turns once, but not each time.
async fn waiters_have_equal_shares(ctx: Ctx) {
    let mut all = Vec::new();
    loop {
        let counts = turns(&ctx).await;
        if counts.iter().all(|count| count * 10 >= TURNS * 8) {
            return;
        }
        all.push(counts);
        assert!(all.len() < 3, "{all:?}");
    }
}

/// How many turns each of the processes gets.
async fn turns(ctx: &Ctx) -> Vec<usize> {
    let (holder, name) = (ctx.client().await, ctx.name());
    let guard = take(&holder, &name).await;
    let counts: Arc<[AtomicUsize; WORKERS]> = Arc::default();
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for who in 0..WORKERS {
        let (client, name) = (ctx.client().await, name.clone());
        let (counts, over) = (Arc::clone(&counts), Arc::clone(&over));
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let guard = client.lock(&name).await.unwrap();
                if counts[who].fetch_add(1, Ordering::SeqCst) + 1 == TURNS {
                    over.store(true, Ordering::SeqCst);
                }
                // Long enough for the previous holder to be queued again, even on a busy machine. A process that is not
                // queued misses its turn.
                sleep(Duration::from_millis(4)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    // All of them are queued before the first release.
    ctx.await_queued(&holder, &name, WORKERS).await;
    guard.release().await.unwrap();
    for task in tasks {
        soon("every worker has had its turns", task).await.unwrap();
    }
    let counts = counts.iter().map(|count| count.load(Ordering::SeqCst));
    counts.collect()
}

async fn a_waiter_that_goes_away_leaves_the_queue(ctx: Ctx) {
    let (holder, name) = (ctx.client().await, ctx.name());
    let (one, two) = (ctx.client().await, ctx.client().await);
    let mut took: Vec<Duration> = Vec::new();
    // A busy machine may be late once. A place that is kept delays the queue each time.
    while took.last().is_none_or(|took| *took >= ctx.at_once()) {
        assert!(took.len() < 3, "{took:?}");
        let guard = take(&holder, &name).await;
        let first = wait_for(&one, &name);
        ctx.await_queued(&holder, &name, 1).await;
        let second = wait_for(&two, &name);
        ctx.await_queued(&holder, &name, 2).await;
        let begin = Instant::now();
        first.abort();
        ctx.await_queued(&holder, &name, 1).await;
        guard.release().await.unwrap();
        let guard = got("the second in the queue is served", second).await;
        took.push(begin.elapsed());
        guard.release().await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn unfair_requests_join_no_queue(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&one, &name).await;
    let waiter = {
        let (two, name) = (two.clone(), name.clone());
        let delay = Duration::from_millis(10);
        tokio::spawn(async move { two.lock(&name).unfair().delays(delay, delay).await })
    };
    not_for(
        "the lock is had while it is held",
        Duration::from_millis(200),
        async {
            while !waiter.is_finished() {
                assert_eq!(one.look(&name).await.unwrap().waiters.len(), 0);
                sleep(Duration::from_millis(5)).await;
            }
        },
    )
    .await;
    guard.release().await.unwrap();
    let guard = got("it is had by asking again", waiter).await;
    let held = one.try_lock(&name).unfair().await;
    assert!(matches!(held, Err(Error::Held { .. })), "{held:?}");
    guard.release().await.unwrap();
    ctx.await_nothing_left().await;
}
