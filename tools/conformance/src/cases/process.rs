//! Many tasks of one process on one name, and the end of a client.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock::engine::Evict;
use fencelock::{Error, Order, Promises, Sequencer, Token};

use crate::case::{Case, case};
use crate::ctx::{Ctx, got, not_for, soon, take, wait_for};

pub(super) static CASES: &[Case] = &[
    case!(tokens_increase_over_hand_off_in_process),
    case!(others_have_their_turn).promised(fifo).busy(),
    case!(a_sequencer_ends_hand_off_in_process),
    case!(an_eviction_ends_hand_off_in_process).promised(ranges),
    case!(tasks_cost_one_place_in_the_queue).promised(fifo),
    case!(close_ends_everything),
    case!(close_leaves_others_alone),
];

fn ranges(promises: &Promises) -> bool {
    promises.ranges
}

fn fifo(promises: &Promises) -> bool {
    promises.order == Order::Fifo
}

/// How often a client hands a lock over between its tasks before the store's queue has its turn, by default.
const BATCH: usize = 16;

async fn tokens_increase_over_hand_off_in_process(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let tokens: Arc<Mutex<Vec<u64>>> = Arc::default();
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (client, name, tokens) = (client.clone(), name.clone(), Arc::clone(&tokens));
        tasks.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = client.lock(&name).await.unwrap();
                assert!(guard.is_valid());
                tokens.lock().unwrap().push(guard.token().get());
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon("every task has had its turns", task).await.unwrap();
    }
    let tokens = tokens.lock().unwrap().clone();
    assert_eq!(tokens.len(), 200);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    // Another process gets a higher token than all of them.
    let next = take(&ctx.client().await, &name).await;
    assert!(next.token().get() > tokens[199]);
    drop(next);
    ctx.await_nothing_left().await;
}

/// A process with many tasks on a name does not keep another one out.
async fn others_have_their_turn(ctx: Ctx) {
    let (crowd, single, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let grants: Arc<Mutex<Vec<bool>>> = Arc::default();
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..40 {
        let (crowd, name, grants) = (crowd.clone(), name.clone(), Arc::clone(&grants));
        let over = Arc::clone(&over);
        tasks.push(tokio::spawn(async move {
            // Not ended by an abort: on a store in memory the last task never waits, so an abort would not end it.
            while !over.load(Ordering::Relaxed) {
                let guard = crowd.lock(&name).await.unwrap();
                grants.lock().unwrap().push(false);
                guard.release().await.unwrap();
            }
        }));
    }
    let mut waits = Vec::new();
    for _ in 0..10 {
        let waiter = wait_for(&single, &name);
        // Count from the moment when the claim is queued at the store after that of the other process. If it is granted
        // before this is seen, there is nothing to count.
        let mut standing = None;
        while !waiter.is_finished() {
            let view = crowd.look(&name).await.unwrap();
            if view.waiters.len() >= 2 {
                standing = Some(grants.lock().unwrap().len());
                break;
            }
            // On a store in memory the waiter and the crowd run only if this task yields.
            tokio::task::yield_now().await;
        }
        let guard = got("the single one has its turn", waiter).await;
        let granted = grants.lock().unwrap().len();
        waits.push(standing.map_or(0, |standing| granted - standing));
        guard.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        soon("every task has ended", task).await.unwrap();
    }
    // At most: the batch of the holder, the batch of one claim queued before it, and grants that were counted late.
    let worst = waits.iter().max().unwrap();
    assert!(*worst <= 3 * BATCH, "{waits:?}");
    ctx.await_nothing_left().await;
}

async fn a_sequencer_ends_hand_off_in_process(ctx: Ctx) {
    let (client, name) = (ctx.client().await, ctx.name());
    let begin = take(&client, &name).await;
    let before: Arc<Mutex<Option<Sequencer>>> = Arc::default();
    let mut tasks = Vec::new();
    // Enough tasks that most get a token from a range.
    for _ in 0..6 {
        let (client, name, before) = (client.clone(), name.clone(), Arc::clone(&before));
        tasks.push(tokio::spawn(async move {
            let guard = client.lock(&name).await.unwrap();
            // Check before this token reaches the store, which would end the other hold in any case.
            let over = before.lock().unwrap().take();
            if let Some(over) = over {
                assert!(!client.check(&over).await.unwrap(), "{over} is over");
            }
            let sequencer = guard.sequencer().await.unwrap();
            assert!(client.check(&sequencer).await.unwrap());
            *before.lock().unwrap() = Some(sequencer);
            guard.release().await.unwrap();
        }));
    }
    tokio::task::yield_now().await;
    begin.release().await.unwrap();
    for task in tasks {
        soon("every task has its turn", task).await.unwrap();
    }
    let last = before.lock().unwrap().take().unwrap();
    assert!(!client.check(&last).await.unwrap(), "{last} is over");
    ctx.await_nothing_left().await;
}

/// Each token of a range stands for the whole grant.
async fn an_eviction_ends_hand_off_in_process(ctx: Ctx) {
    let (crowd, other, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let begin = take(&crowd, &name).await;
    let tokens: Arc<Mutex<Vec<Token>>> = Arc::default();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for _ in 0..6 {
        let (crowd, name, tokens, tell) = (
            crowd.clone(),
            name.clone(),
            Arc::clone(&tokens),
            tell.clone(),
        );
        tasks.push(tokio::spawn(async move {
            let guard = crowd.lock(&name).ttl(Duration::from_secs(3)).await.unwrap();
            let turn = {
                let mut tokens = tokens.lock().unwrap();
                tokens.push(guard.token());
                tokens.len()
            };
            if turn == 3 {
                tell.send(guard.token()).unwrap();
                guard.lost().await;
                assert!(!guard.is_valid());
            }
            drop(guard);
        }));
    }
    tokio::task::yield_now().await;
    begin.release().await.unwrap();
    let third = soon("the third task has its turn", told.recv())
        .await
        .unwrap();
    assert!(other.evict(&name, third, Evict::Release).await.unwrap());
    for task in tasks {
        soon("every task has its turn", task).await.unwrap();
    }
    let tokens = tokens.lock().unwrap().clone();
    assert_eq!(tokens.len(), 6);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let next = take(&other, &name).await;
    assert!(next.token() > tokens[5]);
    next.release().await.unwrap();
    ctx.await_nothing_left().await;
}

async fn tasks_cost_one_place_in_the_queue(ctx: Ctx) {
    let (holder, crowd, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = take(&holder, &name).await;
    let mut tasks = Vec::new();
    for _ in 0..30 {
        let (crowd, name) = (crowd.clone(), name.clone());
        tasks.push(tokio::spawn(async move {
            crowd.lock(&name).await.unwrap().release().await.unwrap();
        }));
    }
    ctx.await_queued(&holder, &name, 1).await;
    not_for(
        "a second place is taken",
        Duration::from_millis(100),
        async {
            while holder.look(&name).await.unwrap().waiters.len() == 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        },
    )
    .await;
    guard.release().await.unwrap();
    for task in tasks {
        soon("every task is served", task).await.unwrap();
    }
    ctx.await_nothing_left().await;
}

async fn close_ends_everything(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let other = format!("{name}/other");
    let blocker = take(&two, &other).await;
    let held = take(&one, &name).await;
    let waiting = [wait_for(&one, &other), wait_for(&one, &name)];
    ctx.await_queued(&two, &other, 1).await;
    soon("closing", one.close()).await.unwrap();
    for waiter in waiting {
        let ended = soon("a request ends", waiter).await.unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    }
    assert!(!held.is_valid());
    soon("the holder learns of it", held.lost()).await;
    let error = one.try_lock(&name).await.unwrap_err();
    assert!(matches!(error, Error::Closed), "{error:?}");
    let next = soon("what was held is free", two.lock(&name))
        .await
        .unwrap();
    next.release().await.unwrap();
    blocker.release().await.unwrap();
    drop(held);
    soon("closing again", one.close()).await.unwrap();
    ctx.await_nothing_left().await;
}

async fn close_leaves_others_alone(ctx: Ctx) {
    let (one, two, name) = (ctx.client().await, ctx.client().await, ctx.name());
    let guard = two.lock(&name).ttl(ctx.ttl(2000)).await.unwrap();
    soon("closing", one.close()).await.unwrap();
    soon("a renewal", guard.prolonged()).await;
    soon("another renewal", guard.prolonged()).await;
    assert!(guard.is_valid());
}
