//! `at_least`: a lock that stays taken for a time from its grant, even after its release.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Claim, LeaseKind, Promises, Standing};
use fencelock_core::layers::{Fault, Layer, Trouble};
use fencelock_core::{
    Acquire, Client, Engine, Error, Evict, Guard, LossReason, Memory, Release, Result,
};
use tokio::time::Instant;

use crate::{World, ms, settle};

const PERIOD: Duration = Duration::from_secs(3600);

/// A little more than the store's own rounding.
const PROMPT: Duration = Duration::from_millis(5);

async fn take(client: &Client) -> Guard {
    client.try_lock("x").at_least(PERIOD).await.unwrap()
}

async fn is_taken(client: &Client) -> bool {
    match client.try_lock("x").await {
        Err(Error::Held { .. }) => true,
        Ok(_) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Panics unless `client` gets the lock at `begun` plus `after`, neither earlier nor much later.
async fn free_after(client: &Client, begun: Instant, after: Duration) {
    let guard = client.lock("x").await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= after, "free after {waited:?}");
    assert!(waited <= after + PROMPT, "free only after {waited:?}");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn a_release_leaves_the_lock_taken_until_the_time_is_over() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let begun = Instant::now();
    let guard = take(&a).await;
    let token = guard.token();
    let sequencer = guard.sequencer().await.unwrap();
    tokio::time::sleep(ms(700)).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(begun.elapsed(), ms(700), "it waits for nothing");
    // Other clients see it as held, since they ask only the store.
    let view = b.look("x").await.unwrap();
    assert_eq!(view.holders[0].token, Some(token));
    assert_eq!(view.holders[0].ttl_left, Some(PERIOD - ms(700)));
    assert!(b.check(&sequencer).await.unwrap());
    for client in [&a, &b] {
        assert!(is_taken(client).await);
    }
    free_after(&b, begun, PERIOD).await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_does_not_stay_open_for_it() {
    let world = World::new();
    let b = world.client();
    let begun = Instant::now();
    let (a, meter) = world.metered();
    take(&a).await.release().await.unwrap();
    drop(a);
    settle().await;
    assert_eq!(Arc::strong_count(&meter), 1, "the client is gone");
    free_after(&b, begun, PERIOD).await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_and_a_closed_client_do_the_same() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let begun = Instant::now();
    drop(take(&a).await);
    settle().await;
    free_after(&b, begun, PERIOD).await;

    let begun = Instant::now();
    let guard = take(&a).await;
    a.close().await.unwrap();
    assert_eq!(guard.lost().await, LossReason::ClientClosed);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyExpired);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    free_after(&b, begun, PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_holder_leaves_the_lock_taken() {
    let world = World::new();
    let b = world.client();
    let (a, trouble) = world.faulty();
    let begun = Instant::now();
    let guard = take(&a).await;
    trouble.by_chance(|_| Trouble::LoseRequest);
    free_after(&b, begun, PERIOD).await;
    assert!(!guard.is_valid(), "it knew first");
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_returned_after_the_store_has_confirmed_the_whole_time() {
    let world = World::new();
    let b = world.client();
    let (fault, trouble) = Fault::new(Arc::new(world.store.another()));
    let a = Client::new(Arc::new(Brief(fault))).unwrap();
    let begun = Instant::now();
    let guard = take(&a).await;
    trouble.by_chance(|_| Trouble::LoseRequest);
    assert!(guard.ttl().await.unwrap() == Some(PERIOD));
    free_after(&b, begun, PERIOD).await;
}

/// A store whose first grants last for one second, like a store that pushes grants to waiters.
#[derive(Debug)]
struct Brief(Fault);

#[async_trait]
impl Layer for Brief {
    fn below(&self) -> &dyn Engine {
        &self.0
    }

    async fn place(&self, claim: &Claim) -> Result<Standing> {
        let mut claim = claim.clone();
        claim.ttl = claim.ttl.min(ms(1000));
        Engine::place(&self.0, &claim).await
    }
}

impl fmt::Display for Brief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("brief:")
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_follow_the_ttl_and_the_hold_may_last_longer() {
    let world = World::new();
    let b = world.client();
    let (a, meter) = world.metered();
    let begun = Instant::now();
    let guard = a.lock("x").ttl(ms(3000)).at_least(ms(60_000)).await;
    let guard = guard.unwrap();
    tokio::time::sleep(ms(30_500)).await;
    let renewals = meter.counts().renew_calls;
    assert!((28..=34).contains(&renewals), "{renewals} renewals in 30 s");
    // The lease covers only what is left of `at_least`.
    assert!(guard.ttl().await.unwrap().unwrap() <= ms(29_500 + 1000));
    tokio::time::sleep(ms(60_000)).await;
    assert!(guard.is_valid(), "it is renewed after that time, too");
    assert!(guard.ttl().await.unwrap().unwrap() <= ms(3000));
    let waiter = tokio::spawn(b.lock("x").into_future());
    settle().await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    drop(waiter.await.unwrap().unwrap());
    assert_eq!(begun.elapsed(), ms(90_500), "a release like any other");
}

#[tokio::test(start_paused = true)]
async fn a_refresh_does_not_shorten_it() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let begun = Instant::now();
    let guard = a.lock("x").renew(false).at_least(PERIOD).await.unwrap();
    guard.refresh(ms(100)).await.unwrap();
    tokio::time::sleep(ms(10_000)).await;
    assert!(guard.is_valid());
    drop(guard);
    settle().await;
    free_after(&b, begun, PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn the_lock_is_free_right_after_it_even_with_a_lock_delay() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let begun = Instant::now();
    let request = a.lock("x").lock_delay(ms(5000)).at_least(PERIOD);
    request.await.unwrap().release().await.unwrap();
    free_after(&b, begun, PERIOD).await;

    // The time left is shorter than the shortest ttl of the store.
    let begun = Instant::now();
    let guard = take(&a).await;
    tokio::time::sleep(PERIOD - ms(1)).await;
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    free_after(&b, begun, PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_says_so_and_the_lease_ends_it() {
    let world = World::new();
    let b = world.client();
    let (a, trouble) = world.faulty();
    let begun = Instant::now();
    let guard = take(&a).await;
    trouble.next([Trouble::LoseRequest]);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(is_taken(&b).await);
    free_after(&b, begun, PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_lock_is_free_at_once() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    // First while the lock is held, then after its release.
    let guard = take(&a).await;
    assert!(b.evict("x", guard.token(), Evict::Release).await.unwrap());
    assert_eq!(guard.lost().await, LossReason::TakenAway);
    free_after(&b, Instant::now(), Duration::ZERO).await;
    assert_ne!(guard.release().await.unwrap(), Release::Released);
    free_after(&b, Instant::now(), Duration::ZERO).await;

    let guard = take(&a).await;
    let token = guard.token();
    guard.release().await.unwrap();
    assert!(b.evict("x", token, Evict::Release).await.unwrap());
    free_after(&b, Instant::now(), Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_holder_leaves_the_lock_taken() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let begun = Instant::now();
    let request = a.lock("x").at_least(PERIOD).healthy(|| false);
    let guard = request.await.unwrap();
    assert_eq!(guard.lost().await, LossReason::Unhealthy);
    assert!(is_taken(&b).await);
    free_after(&b, begun, PERIOD).await;

    // At the end of `max_hold`, nothing is left of `at_least`.
    let begun = Instant::now();
    let request = a.lock("x").at_least(PERIOD).max_hold(PERIOD);
    let guard = request.await.unwrap();
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    free_after(&b, begun, PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_caller_is_withdrawn_at_once() {
    let world = World::new();
    let b = world.client();
    let (a, trouble) = world.faulty();
    trouble.next([Trouble::DelayReply(ms(500))]);
    let request = a.lock("x").at_least(PERIOD).timeout(ms(100));
    request.await.unwrap_err();
    assert!(is_taken(&b).await);
    tokio::time::sleep(ms(400)).await;
    settle().await;
    assert_eq!(world.left(), 0);

    trouble.next([Trouble::DelayReply(ms(500))]);
    let request = tokio::spawn(a.lock("x").at_least(PERIOD).into_future());
    settle().await;
    request.abort();
    assert!(is_taken(&b).await);
    tokio::time::sleep(ms(500)).await;
    settle().await;
    assert_eq!(world.left(), 0);
}

#[tokio::test(start_paused = true)]
async fn all_of_several_locks_stay_taken_or_none() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let each = |request: Acquire| request.at_least(PERIOD);
    let held = b.lock("z").await.unwrap();
    let error = a.try_lock_all(["x", "y", "z"]).each(each).await;
    assert!(matches!(error, Err(Error::Held { .. })));
    for name in ["x", "y"] {
        drop(b.try_lock(name).await.unwrap());
    }
    held.release().await.unwrap();
    settle().await;
    let guards = a.try_lock_all(["x", "y", "z"]).each(each).await.unwrap();
    assert_eq!(guards.release().await.unwrap(), Release::Released);
    for name in ["x", "y", "z"] {
        b.try_lock(name).await.unwrap_err();
    }
    tokio::time::sleep(PERIOD).await;
    drop(b.try_lock_all(["x", "y", "z"]).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn it_is_not_handed_to_waiters_of_the_process() {
    let world = World::new();
    let client = world.client();
    let begun = Instant::now();
    let guard = take(&client).await;
    let next = tokio::spawn(client.lock("x").at_least(PERIOD).into_future());
    settle().await;
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!(begun.elapsed() >= PERIOD && begun.elapsed() <= PERIOD + PROMPT);
    next.release().await.unwrap();
    free_after(&client, begun, 2 * PERIOD).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_request_of_an_owner_counts() {
    let world = World::new();
    let (a, b) = (world.client(), world.client());
    let owner = a.owner();
    let begun = Instant::now();
    let outer = a.lock("x").owner(&owner).at_least(ms(10_000));
    let outer = outer.await.unwrap();
    let inner = a.lock("x").owner(&owner).at_least(PERIOD).await.unwrap();
    outer.release().await.unwrap();
    inner.release().await.unwrap();
    let again = a.try_lock("x").owner(&owner).await;
    assert!(again.is_err(), "it is over for its owner, too");
    free_after(&b, begun, ms(10_000)).await;

    let outer = a.lock("x").owner(&owner).await.unwrap();
    let inner = a.lock("x").owner(&owner).at_least(PERIOD).await.unwrap();
    inner.release().await.unwrap();
    outer.release().await.unwrap();
    free_after(&b, Instant::now(), Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_stays_taken_while_others_are_held() {
    let world = World::new();
    let client = world.client();
    let semaphore = client.semaphore("x", 2).unwrap();
    let kept = semaphore.acquire().at_least(PERIOD).await.unwrap();
    kept.release().await.unwrap();
    assert_eq!(semaphore.available().await.unwrap(), 1);
    let other = semaphore.try_acquire().await.unwrap();
    semaphore.try_acquire().await.unwrap_err();
    other.release().await.unwrap();
    tokio::time::sleep(PERIOD).await;
    assert_eq!(semaphore.available().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn impossible_requests_are_refused() {
    let world = World::new();
    let (client, meter) = world.metered();
    let most = client.promises().max_ttl;
    let short = client.lock("x").at_least(PERIOD).max_hold(PERIOD / 2);
    let long = client.lock("x").at_least(most).lock_delay(ms(1));
    for refused in [short, long] {
        let error = refused.await.unwrap_err();
        assert!(
            matches!(&error, Error::Invalid { what, .. } if *what == "at_least"),
            "{error}"
        );
    }
    assert_eq!(meter.counts().placed, 0);
    let guard = take(&client).await;
    let error = guard.downgrade().await.unwrap_err();
    assert!(error.to_string().contains("at_least"), "{error}");
    settle().await;
    assert!(is_taken(&client).await, "its guard was dropped");

    for (kind, word) in [
        (LeaseKind::Session, "session"),
        (LeaseKind::Connection, "connection"),
    ] {
        let client = Client::new(Arc::new(Bound::new(kind))).unwrap();
        let error = client.lock("x").at_least(PERIOD).await.unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(client.lock("x").at_least(Duration::ZERO).await.is_ok());
    }
}

/// A store whose locks end with a session or a connection, not with a lease.
#[derive(Debug)]
struct Bound {
    memory: Memory,
    promises: Promises,
}

impl Bound {
    fn new(lease: LeaseKind) -> Self {
        let memory = Memory::new();
        let promises = Engine::promises(&memory).clone().lease(lease);
        Self { memory, promises }
    }
}

impl Layer for Bound {
    fn below(&self) -> &dyn Engine {
        &self.memory
    }

    fn promises(&self) -> &Promises {
        &self.promises
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bound:")
    }
}
