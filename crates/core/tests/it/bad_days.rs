//! Requests and replies that are lost, late or held up; futures dropped at every await.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use fencelock_core::layers::Trouble;
use fencelock_core::{Client, Error, Guard, LockName, LossReason, Observer, Release, Token};

use crate::{World, ms, settle};

/// Polls a future a few times, lets all other tasks run in between, and then drops it.
async fn poll_and_drop(future: impl Future, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(_done) = future.as_mut().poll(&mut cx) {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_place_leaves_no_lock() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([Trouble::LoseReply]);
    let error = client.try_lock("x").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_tries_again_after_errors() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([
        Trouble::LoseRequest,
        Trouble::LoseReply,
        Trouble::LoseRequest,
    ]);
    let guard = client.lock("x").await.unwrap();
    assert!(guard.is_valid());
    drop(guard);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timed_request_says_that_the_store_did_not_answer() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.by_chance(|_| Trouble::LoseRequest);
    let error = client.lock("x").timeout(ms(1000)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hung_place_does_not_delay_the_timeout_and_is_withdrawn_later() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([Trouble::Hold]);
    let begun = tokio::time::Instant::now();
    let error = client.lock("x").timeout(ms(700)).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert_eq!(begun.elapsed(), ms(700));
    faults.open(1);
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn futures_dropped_at_any_moment_leave_nothing() {
    for polls in 1..12 {
        for held in [false, true] {
            let world = World::new();
            let other = world.client();
            let (client, faults) = world.faulty();
            let holder = match held {
                true => Some(other.lock("x").await.unwrap()),
                false => None,
            };
            faults.next([Trouble::DelayReply(ms(5))]);
            poll_and_drop(client.lock("x").into_future(), polls).await;
            tokio::time::sleep(ms(50)).await;
            if let Some(holder) = holder {
                assert!(other.look("x").await.unwrap().waiters.is_empty(), "{polls}");
                holder.release().await.unwrap();
            }
            tokio::time::sleep(ms(50)).await;
            assert_eq!(world.left(), 0, "after {polls} polls, held: {held}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_release_still_releases() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").await.unwrap();
    faults.next([Trouble::DelayRequest(ms(20))]);
    assert!(!poll_and_drop(guard.release(), 1).await);
    tokio::time::sleep(ms(30)).await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_repeated_in_the_background() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").await.unwrap();
    faults.next([Trouble::LoseRequest, Trouble::LoseRequest]);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    tokio::time::sleep(ms(2000)).await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_withdrawal_is_not_repeated_beyond_the_lease() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(500)).await.unwrap();
    faults.by_chance(|_| Trouble::LoseRequest);
    guard.release().await.unwrap_err();
    let next = other.lock("x").await.unwrap();
    client.close().await.unwrap();
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_is_tried_again_within_validity() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(900)).await.unwrap();
    faults.next([
        Trouble::LoseRequest,
        Trouble::LoseReply,
        Trouble::LoseRequest,
    ]);
    tokio::time::sleep(ms(3000)).await;
    assert!(guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_hung_renewal_does_not_delay_the_loss_and_its_answer_revives_nothing() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(900)).await.unwrap();
    let begun = tokio::time::Instant::now();
    faults.next([Trouble::Hold]);
    guard.lost().await;
    let told = begun.elapsed();
    assert!(told < ms(900), "{told:?}");
    let next = other.lock("x").await.unwrap();
    assert!(begun.elapsed() >= ms(900));
    faults.open(1);
    settle().await;
    assert!(!guard.is_valid());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert!(next.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_answered_too_late_revives_nothing() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(900)).await.unwrap();
    // The renewal takes effect in time, so the store keeps the lock. But its answer comes after the holder learned of the loss.
    faults.next([Trouble::DelayReply(ms(1200))]);
    guard.lost().await;
    tokio::time::sleep(ms(2000)).await;
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn release_waits_for_a_renewal_under_way() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(900)).await.unwrap();
    faults.next([Trouble::DelayRequest(ms(100))]);
    tokio::time::sleep(ms(350)).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(
        begun.elapsed() >= ms(10),
        "released while a renewal was under way"
    );
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn lock_delay_runs_after_a_loss_and_not_after_a_release() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let request = || client.lock("x").ttl(ms(500)).lock_delay(ms(2000));
    request().await.unwrap().release().await.unwrap();
    drop(other.try_lock("x").await.unwrap());
    settle().await;
    let guard = request().await.unwrap();
    faults.by_chance(|_| Trouble::LoseRequest);
    let begun = tokio::time::Instant::now();
    guard.lost().await;
    assert!(begun.elapsed() < ms(500));
    let _next = other.lock("x").await.unwrap();
    assert!(begun.elapsed() >= ms(2500), "{:?}", begun.elapsed());
}

/// Panics unless the holder learns that its lock is lost before another client is granted it.
async fn is_told_before_the_next(guard: &Guard, other: &Client) {
    let name = guard.name().as_str();
    let next = tokio::spawn(other.lock(name).into_future());
    guard.lost().await;
    settle().await;
    assert!(
        !next.is_finished(),
        "{name}: granted before the holder was told"
    );
    assert!(next.await.unwrap().unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_refresh_and_a_renewal_take_turns() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(3000)).await.unwrap();
    // The renewal takes effect at 1 s and answers at 1.5 s. Between these moments, a refresh shortens the lease.
    faults.next([Trouble::DelayReply(ms(500))]);
    tokio::time::sleep(ms(1100)).await;
    guard.refresh(ms(300)).await.unwrap();
    assert!(guard.remaining() <= ms(300), "{:?}", guard.remaining());
    faults.by_chance(|_| Trouble::LoseRequest);
    is_told_before_the_next(&guard, &other).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_arrives_late_does_not_shorten_the_validity() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(1000)).renew(false).await.unwrap();
    faults.next([Trouble::ArriveAfterError(ms(100))]);
    guard.refresh(ms(200)).await.unwrap_err();
    guard.refresh(ms(5000)).await.unwrap();
    is_told_before_the_next(&guard, &other).await;
}

#[tokio::test(start_paused = true)]
async fn a_shorter_renewal_without_an_answer_shortens_the_validity() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let short = client.lock("x").ttl(ms(1000)).renew(false).await.unwrap();
    // The scheduled renewals ask for less than the refresh below.
    let long = client.lock("y").ttl(ms(300)).await.unwrap();
    long.refresh(ms(3000)).await.unwrap();
    faults.by_chance(|call| match call {
        "renew" => Trouble::LoseReply,
        _ => Trouble::None,
    });
    short.refresh(ms(200)).await.unwrap_err();
    for guard in [&short, &long] {
        is_told_before_the_next(guard, &other).await;
        let refused = guard.refresh(ms(3000)).await.unwrap_err();
        assert!(matches!(refused, Error::Lost { .. }), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_of_the_schedule_shortens_nothing() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(300)).await.unwrap();
    guard.refresh(ms(3000)).await.unwrap();
    let ends = guard.valid_until();
    // The scheduled renewal comes after a third of the longer lease, first without an answer and then with one.
    faults.next([Trouble::LoseReply]);
    tokio::time::sleep(ms(2000)).await;
    assert!(guard.valid_until() >= ends, "{:?}", guard.remaining());
    assert!(guard.ttl().await.unwrap().unwrap() >= guard.remaining());
    // Then the scheduled renewals are for the guard's own ttl.
    tokio::time::sleep(ms(3000)).await;
    assert!(guard.is_valid() && guard.remaining() <= ms(300));
}

#[tokio::test(start_paused = true)]
async fn a_longer_refresh_without_an_answer_keeps_the_validity() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(300)).renew(false).await.unwrap();
    faults.next([Trouble::ArriveAfterError(ms(100))]);
    guard.refresh(ms(1000)).await.unwrap_err();
    guard.refresh(ms(5000)).await.unwrap();
    assert!(guard.remaining() > ms(4000), "{:?}", guard.remaining());
    tokio::time::sleep(ms(200)).await;
    let left = guard.ttl().await.unwrap().unwrap();
    assert!(left >= guard.remaining() && left > ms(4000), "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shorter_renewal_that_hangs_shortens_the_validity() {
    let world = World::new();
    let other = world.client();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(3000)).renew(false).await.unwrap();
    faults.next([Trouble::DelayReply(ms(5000))]);
    let told = is_told_before_the_next(&guard, &other);
    let (refused, ()) = tokio::join!(guard.refresh(ms(200)), told);
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Lost { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_request_withdraws_attempts_without_an_answer() {
    let world = World::new();
    let held = world.client().lock("x").await.unwrap();
    let (client, faults) = world.faulty();
    faults.next([Trouble::LoseRequest]);
    let withdrawn = Arc::new(AtomicBool::new(false));
    faults.by_chance({
        let withdrawn = Arc::clone(&withdrawn);
        move |call| {
            withdrawn.fetch_or(call == "withdraw", Ordering::SeqCst);
            Trouble::None
        }
    });
    let error = client.lock("x").unfair().attempts(2).await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error}");
    settle().await;
    assert!(withdrawn.load(Ordering::SeqCst));
    held.release().await.unwrap();
}

/// An observer whose methods panic.
#[derive(Debug)]
struct Hysteric;

impl Observer for Hysteric {
    fn lost(&self, _name: &LockName, _token: Token, _reason: LossReason) {
        panic!("lost");
    }

    fn renewed(&self, _kept: usize, _lost: usize, _unknown: usize) {
        panic!("renewed");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_does_not_end_a_hold() {
    let world = World::new();
    let observer = Arc::new(Hysteric);
    let store = Arc::new(world.store.another());
    let client = Client::builder(store).observer(observer).build().unwrap();
    let guard = client.lock("x").ttl(ms(300)).await.unwrap();
    let brief = client.lock("y").ttl(ms(300)).renew(false);
    brief.await.unwrap().lost().await;
    tokio::time::sleep(ms(3000)).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_if_answers_take_longer_than_the_ttl() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.by_chance(|call| match call {
        "place" => Trouble::DelayReply(ms(150)),
        _ => Trouble::None,
    });
    let error = client.try_lock("x").ttl(ms(100)).await.unwrap_err();
    assert!(error.to_string().contains("longer than the ttl"), "{error}");
    let error = client.lock("x").ttl(ms(100)).await.unwrap_err();
    assert!(error.to_string().contains("longer than the ttl"), "{error}");
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timed_request_that_heard_nothing_does_not_say_that_the_lock_is_held() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([Trouble::Hold]);
    // The second request waits for the first one in this process, so it does not know either whether the lock is held.
    let (first, second) = tokio::join!(
        client.lock("x").timeout(ms(200)),
        client.lock("x").timeout(ms(200))
    );
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
    faults.open(1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_comes_during_close_is_released() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([Trouble::DelayReply(ms(300))]);
    let request = tokio::spawn(client.lock("x").into_future());
    settle().await;
    client.close().await.unwrap();
    assert!(matches!(request.await.unwrap(), Err(Error::Closed)));
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn close_does_not_wait_a_whole_lease_for_a_store_that_is_gone() {
    let world = World::new();
    let (client, faults) = world.faulty();
    let guard = client.lock("x").ttl(ms(3_600_000)).await.unwrap();
    faults.by_chance(|_| Trouble::LoseRequest);
    guard.release().await.unwrap_err();
    let begun = tokio::time::Instant::now();
    client.close().await.unwrap();
    assert!(begun.elapsed() <= ms(5000), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_first_waiter_that_went_away_is_passed_over_at_once() {
    let world = World::new();
    let (client, faults) = world.faulty();
    faults.next([Trouble::LoseReply]);
    let first = client.lock("x").timeout(ms(10)).into_future();
    let first = tokio::spawn(first);
    settle().await;
    let second = tokio::spawn(client.lock("x").ttl(ms(60_000)).into_future());
    settle().await;
    faults.by_chance(|call| match call {
        "withdraw" => Trouble::LoseRequest,
        _ => Trouble::None,
    });
    let _ = first.await.unwrap();
    tokio::time::sleep(ms(1500)).await;
    faults.calm();
    let view = client.look("x").await.unwrap();
    assert!(
        !view.waiters.is_empty() || second.is_finished(),
        "the front was kept"
    );
    second.abort();
}
