//! `Guard::cancellation_token`: when it is cancelled, and when it is not.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Waker};

use fencelock_core::layers::Trouble;
use fencelock_core::{CancellationToken, Client, Evict, Guard, LossReason, Memory};
use tokio::time::{Instant, sleep};

use crate::{World, ms, settle};

fn poll_once(future: Pin<&mut impl Future>) {
    let mut context = Context::from_waker(Waker::noop());
    let _ = future.poll(&mut context);
}

#[tokio::test(start_paused = true)]
async fn a_release_and_a_drop_cancel_it_at_once() {
    let world = World::new();
    let client = world.client();
    let guard = client.lock("x").await.unwrap();
    let (token, same) = (guard.cancellation_token(), guard.cancellation_token());
    assert!(!token.is_cancelled());
    // It is cancelled before the store has answered.
    let mut released = pin!(guard.release());
    poll_once(released.as_mut());
    assert!(token.is_cancelled() && same.is_cancelled());
    let guard = client.lock("x").await.unwrap();
    let token = guard.cancellation_token();
    drop(guard);
    assert!(token.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_loss_cancels_it_before_the_next_grant() {
    let world = World::new();
    for renews in [false, true] {
        let (holder, faults) = world.faulty();
        let guard = holder.lock("x").ttl(ms(3000)).renew(renews).await.unwrap();
        faults.by_chance(|_| Trouble::LoseRequest);
        let token = guard.cancellation_token();
        let other = world.client();
        let begun = Instant::now();
        let next = tokio::spawn({
            let token = token.clone();
            async move {
                let next = other.lock("x").await.unwrap();
                (token.is_cancelled(), next)
            }
        });
        token.cancelled().await;
        assert!(begun.elapsed() < ms(3000), "{:?}", begun.elapsed());
        assert!(!next.is_finished());
        let (cancelled, next) = next.await.unwrap();
        assert!(cancelled);
        faults.calm();
        drop((guard, next));
        settle().await;
    }
}

/// Ends a hold in each way that can happen to its holder.
async fn ends(world: &World, how: LossReason) -> (Client, Guard) {
    let client = world.client();
    let request = client.lock("x").ttl(ms(3000));
    let request = match how {
        LossReason::MaxHold => request.max_hold(ms(1500)),
        LossReason::Unhealthy => request.healthy(|| false),
        LossReason::NotRenewed => request.renew(false),
        _ => request,
    };
    let guard = request.await.unwrap();
    if how == LossReason::TakenAway {
        let other = world.client();
        let evicted = other.evict("x", guard.token(), Evict::Release).await;
        assert!(evicted.unwrap());
    }
    (client, guard)
}

#[tokio::test(start_paused = true)]
async fn every_way_to_lose_a_lock_cancels_it() {
    use LossReason::{ClientClosed, MaxHold, NotRenewed, TakenAway, Unhealthy};
    let world = World::new();
    for reason in [MaxHold, Unhealthy, NotRenewed, TakenAway, ClientClosed] {
        let (client, guard) = ends(&world, reason).await;
        let token = guard.cancellation_token();
        if reason == ClientClosed {
            assert!(!token.is_cancelled());
            client.close().await.unwrap();
        }
        let limit = tokio::time::timeout(ms(10_000), token.cancelled()).await;
        assert!(limit.is_ok(), "{reason:?}");
        assert_eq!(guard.lost().await, reason);
        // A token requested after the loss is cancelled, too.
        assert!(guard.cancellation_token().is_cancelled());
        drop(guard);
        settle().await;
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_and_a_hand_off_leave_the_tokens_of_others_alone() {
    let world = World::new();
    let client = world.client();
    let first = client.lock("x").ttl(ms(3000)).await.unwrap();
    let of_first = first.cancellation_token();
    let waiting = tokio::spawn(client.lock("x").ttl(ms(3000)).into_future());
    let another = tokio::spawn(client.lock("x").ttl(ms(3000)).into_future());
    sleep(ms(60_000)).await;
    assert!(!of_first.is_cancelled());
    first.release().await.unwrap();
    assert!(of_first.is_cancelled());
    let second = waiting.await.unwrap().unwrap();
    let of_second = second.cancellation_token();
    assert!(!of_second.is_cancelled());
    // The hold continues within this process.
    second.release().await.unwrap();
    let third = another.await.unwrap().unwrap();
    assert!(of_second.is_cancelled());
    assert!(!third.cancellation_token().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn each_guard_of_an_owner_has_its_own_token() {
    let world = World::new();
    let client = world.client();
    let owner = client.owner();
    let outer = client.lock("x").owner(&owner).await.unwrap();
    let inner = client.lock("x").owner(&owner).await.unwrap();
    let tokens = [outer.cancellation_token(), inner.cancellation_token()];
    let cancelled = || tokens.each_ref().map(CancellationToken::is_cancelled);
    inner.release().await.unwrap();
    assert_eq!(cancelled(), [false, true]);
    outer.release().await.unwrap();
    assert_eq!(cancelled(), [true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_cancels_it_before_readers_are_granted() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").await.unwrap();
    let token = guard.cancellation_token();
    faults.next([Trouble::Hold]);
    let downgrading = tokio::spawn(guard.downgrade());
    settle().await;
    assert!(token.is_cancelled() && !downgrading.is_finished());
    faults.open(1);
    let shared = downgrading.await.unwrap().unwrap();
    assert!(!shared.cancellation_token().is_cancelled());
}

/// The client's own task has not run, so only the clock can show the end.
#[test]
fn a_token_requested_after_the_end_is_cancelled_already() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(async {
        let client = Client::new(Arc::new(Memory::new())).unwrap();
        let guard = client.lock("x").ttl(ms(200)).await.unwrap();
        std::thread::sleep(ms(300));
        assert!(guard.cancellation_token().is_cancelled());
    });
}
