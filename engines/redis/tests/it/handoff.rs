//! Hand-offs: the queue, pushes, and what happens when a push is lost.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Evict, Renewal, Standing, Withdrawn};
use fencelock_core::{Clock, Engine, Token};

use crate::support::{Store, calls, ms, nothing_is_left, one_listens, open, open_with, server};

#[tokio::test]
async fn the_queue_is_served_in_order_by_pushes() {
    let server = server();
    let (here, there) = (open(&server.url()).await, open(&server.url()).await);
    let first = here.claim("q");
    let mut last = here.held(&first).await.tokens.first;
    let mut queue = Vec::new();
    for i in 0..6 {
        let store = if i % 2 == 0 { &there } else { &here };
        let claim = store.claim("q");
        let before = Clock::Boot.now();
        let place = store.waits(&claim).await;
        assert_eq!(place.ahead, Some(i));
        queue.push((store, claim, place, before..Clock::Boot.now()));
    }
    assert_eq!(here.release(&first).await, Withdrawn::Released);
    for (store, claim, place, asked) in queue {
        let grant = store.granted(&claim, &place).await;
        assert!(grant.tokens.first > last);
        assert!(grant.recorded);
        assert!(
            asked.contains(&grant.counted_from),
            "from before the place was asked for"
        );
        assert_eq!(grant.lease, Duration::from_secs(2), "the claim window");
        last = grant.tokens.first;
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
    }
    nothing_is_left(&server);
}

#[tokio::test]
async fn a_renewal_turns_the_window_into_a_lease() {
    let server = server();
    let store = open(&server.url()).await;
    let (first, second) = (store.claim("w"), store.claim("w"));
    store.held(&first).await;
    let place = store.waits(&second).await;
    store.release(&first).await;
    let grant = store.granted(&second, &place).await;
    assert!(Store::pttl(&server, "w") <= 2000);
    let renewed = store.renew(&second, grant.tokens.first).await;
    assert!(matches!(renewed, Renewal::Kept { lease, .. } if lease == second.ttl));
    assert!(Store::pttl(&server, "w") > 29_000);
}

#[tokio::test]
async fn a_waiter_that_left_is_skipped() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = [store.claim("l"), store.claim("l"), store.claim("l")];
    store.held(&claims[0]).await;
    store.waits(&claims[1]).await;
    let place = store.waits(&claims[2]).await;
    assert_eq!(store.release(&claims[1]).await, Withdrawn::LeftQueue);
    assert_eq!(store.release(&claims[0]).await, Withdrawn::Released);
    store.granted(&claims[2], &place).await;
}

#[tokio::test]
async fn placing_again_keeps_the_place_and_returns_the_grant() {
    let server = server();
    let store = open(&server.url()).await;
    let claims = [store.claim("k"), store.claim("k"), store.claim("k")];
    store.held(&claims[0]).await;
    store.waits(&claims[1]).await;
    store.waits(&claims[2]).await;
    assert_eq!(store.waits(&claims[1]).await.ahead, Some(0));
    assert_eq!(store.waits(&claims[2]).await.ahead, Some(1));
    store.release(&claims[0]).await;
    // If the claim is placed again, it also gets the grant, with the whole lease.
    let grant = store.held(&claims[1]).await;
    assert_eq!(grant.lease, claims[1].ttl);
    assert!(Store::pttl(&server, "k") > 29_000);
    let place = store.waits(&claims[2]).await;
    assert_eq!(place.ahead, Some(0));
}

/// A push whose token is not above the counter of the newest reply is older than that reply.
#[tokio::test]
async fn a_push_from_before_the_newest_reply_is_ignored() {
    let server = server();
    let store = open_with(&server, "claim-window=200ms").await;
    let claims = [store.claim("old"), store.claim("old")];
    store.held(&claims[0]).await;
    store.waits(&claims[1]).await;
    store.release(&claims[0]).await;
    // The grant is pushed, but its window is over, and another claim holds, before the waiter reads the push.
    let other = open(&server.url()).await;
    let third = other.claim("old");
    let deadline = Instant::now() + Duration::from_secs(5);
    while !matches!(
        other
            .engine
            .place(&third.clone().wait(false))
            .await
            .unwrap(),
        Standing::Held(_)
    ) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(ms(5)).await;
    }
    // The push has not been read yet, and this reply is newer.
    let newer = store.waits(&claims[1]).await;
    let stale = tokio::time::timeout(ms(100), store.engine.wait(&claims[1], &newer)).await;
    assert!(stale.is_err(), "{stale:?}");
    other.release(&third).await;
    store.lock(&claims[1]).await;
}

#[tokio::test]
async fn a_lost_push_delays_only_until_the_recheck() {
    let server = server();
    let store = open_with(&server, "claim-window=400ms").await;
    let (first, second) = (store.claim("p"), store.claim("p"));
    store.held(&first).await;
    let place = store.waits(&second).await;
    // Grant the lock on the server without a message, as if the message had been lost.
    let value: String = server.command(&["GET", "p"]).unwrap();
    let value = value.replace(&first.id.to_string(), &second.id.to_string());
    let queue = "{p}:fencelock:line";
    let _: i64 = server
        .command(&["ZREM", queue, &second.id.to_string()])
        .unwrap();
    let _: String = server.command(&["SET", "p", &value, "PX", "4000"]).unwrap();
    let grant = tokio::time::timeout(ms(15_000), async {
        tokio::select! {
            changed = store.engine.wait(&second, &place) => panic!("{changed:?}"),
            () = store.engine.clock().sleep_until(place.recheck) => {}
        }
        store.held(&second).await
    });
    assert_eq!(grant.await.unwrap().lease, second.ttl);
}

/// A waiter whose process listens, but does not take the grant, delays the queue by one window.
#[tokio::test]
async fn an_unconfirmed_grant_delays_the_queue_by_one_window() {
    let server = server();
    let store = open_with(&server, "claim-window=3s").await;
    let claims = [store.claim("s"), store.claim("s"), store.claim("s")];
    store.held(&claims[0]).await;
    store.waits(&claims[1]).await;
    store.waits(&claims[2]).await;
    let begin = Instant::now();
    store.release(&claims[0]).await;
    store.lock(&claims[2]).await;
    let took = begin.elapsed();
    assert!((ms(2950)..ms(5900)).contains(&took), "{took:?}");
}

/// Waiters whose processes have ended are skipped, up to 64 by each script.
#[tokio::test]
async fn dead_waiters_are_skipped() {
    let server = server();
    let (store, dying) = (open(&server.url()).await, open(&server.url()).await);
    let first = store.claim("dead");
    store.held(&first).await;
    for _ in 0..200 {
        dying.waits(&dying.claim("dead")).await;
    }
    let last = store.claim("dead");
    let place = store.waits(&last).await;
    assert_eq!(place.ahead, Some(200));
    drop(dying);
    one_listens(&server).await;
    store.release(&first).await;
    let left: i64 = server.command(&["ZCARD", "{dead}:fencelock:line"]).unwrap();
    assert_eq!(left, 201 - 64);
    let grant = tokio::time::timeout(Duration::from_secs(30), store.lock(&last)).await;
    assert_eq!(grant.unwrap().lease, last.ttl);
    assert_eq!(store.release(&last).await, Withdrawn::Released);
    nothing_is_left(&server);
}

/// A claim that does not wait skips dead waiters, like one that waits.
#[tokio::test]
async fn a_free_lock_with_a_dead_queue_is_not_busy() {
    let server = server();
    let store = open(&server.url()).await;
    for claim in [store.claim("free"), store.shared("free")] {
        let dying = open(&server.url()).await;
        let short = dying.claim("free").ttl(ms(1500));
        dying.held(&short).await;
        dying.waits(&dying.claim("free")).await;
        drop(dying);
        one_listens(&server).await;
        let begin = Instant::now();
        while server.command::<i64>(&["EXISTS", "free"]).unwrap() == 1 {
            assert!(begin.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(ms(2)).await;
        }
        let impatient = claim.wait(false);
        store.held(&impatient).await;
        assert_eq!(store.release(&impatient).await, Withdrawn::Released);
    }
    nothing_is_left(&server);
}

#[tokio::test]
async fn a_grant_without_a_waiter_is_released() {
    let server = server();
    let store = open_with(&server, "claim-window=20s").await;
    let (first, third) = (store.claim("b"), store.claim("b"));
    store.held(&first).await;
    // The server's queue has a waiter that its process does not know.
    let second = store.claim("b");
    store.waits(&second).await;
    let queue = "{b}:fencelock:line";
    let who: String = server
        .command(&["HGET", &format!("{queue}:who"), &second.id.to_string()])
        .unwrap();
    assert_eq!(store.release(&second).await, Withdrawn::LeftQueue);
    let id = second.id.to_string();
    let _: i64 = server.command(&["ZADD", queue, "1", &id]).unwrap();
    let _: i64 = server
        .command(&["HSET", &format!("{queue}:who"), &id, &who])
        .unwrap();
    let place = store.waits(&third).await;
    store.release(&first).await;
    store.granted(&third, &place).await;
}

#[tokio::test]
async fn an_abandoned_lock_keeps_its_lock_delay() {
    let server = server();
    let store = open(&server.url()).await;
    let first = store.claim("d").lock_delay(ms(1500));
    store.held(&first).await;
    assert!(Store::pttl(&server, "d") > 30_000);
    let second = store.claim("d");
    let begin = Instant::now();
    assert!(matches!(
        store.engine.place(&second).await.unwrap(),
        Standing::Waiting(_)
    ));
    assert_eq!(store.abandon(&first).await, Withdrawn::Released);
    let left = Store::pttl(&server, "d");
    assert!((1..=1500).contains(&left), "{left}");
    store.lock(&second).await;
    assert!(begin.elapsed() >= ms(1490), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn with_a_lock_delay_a_push_is_confirmed_first() {
    let server = server();
    let store = open(&server.url()).await;
    let first = store.claim("c");
    let second = store.claim("c").lock_delay(ms(5000));
    store.held(&first).await;
    let place = store.waits(&second).await;
    store.release(&first).await;
    let changed = store.engine.wait(&second, &place).await.unwrap();
    assert!(changed.is_none(), "{changed:?}");
    assert!(Store::pttl(&server, "c") <= 2000, "unconfirmed: one window");
    let grant = store.held(&second).await;
    assert_eq!(grant.lease, second.ttl);
    assert!(Store::pttl(&server, "c") > 34_000);
}

#[tokio::test]
async fn ranges_come_from_scripts_only_and_stay_below_time() {
    let server = server();
    let store = open(&server.url()).await;
    let claim = store.claim("r").reserve(16).record(false);
    let grant = store.held(&claim).await;
    assert_eq!(grant.tokens.count, 16);
    let next = store.claim("r2");
    let after = store.held(&next).await.tokens.first;
    assert!(after.get() >= grant.tokens.first.get() + 16);
    // The current token moves within the range; every token of the range belongs to the holder.
    let moved = Token(grant.tokens.first.get() + 3);
    store.renew(&claim, moved).await;
    let view = store.look(&claim.name).await;
    assert_eq!(view.token(), Some(moved));
    let last = Token(grant.tokens.first.get() + 15);
    let beyond = Token(grant.tokens.first.get() + 16);
    let evict = Evict::Release;
    assert!(!store.evict(&claim.name, beyond, evict).await);
    assert!(store.evict(&claim.name, last, evict).await);
    // A counter that is ahead of the time gives single tokens.
    let _: String = server
        .command(&["SET", "fencelock:counter", "8000000000000000"])
        .unwrap();
    assert_eq!(store.held(&claim).await.tokens.count, 1);
}

#[tokio::test]
async fn a_hand_over_takes_two_commands() {
    let server = server();
    let stores = [open(&server.url()).await, open(&server.url()).await];
    cycle(&stores, 10).await;
    let before = commands(&server);
    cycle(&stores, 500).await;
    let spent = commands(&server) - before;
    // 1000 grants, a few turns at the beginning and the end, and the counting itself.
    assert!(spent <= 2 * 1000 + 20, "{spent} commands for 1000 grants");
}

async fn cycle(stores: &[Store; 2], turns: usize) {
    let one = async {
        for _ in 0..turns {
            let claim = stores[0].plain("contended");
            stores[0].lock(&claim).await;
            tokio::task::yield_now().await;
            stores[0].release(&claim).await;
        }
    };
    let two = async {
        for _ in 0..turns {
            let claim = stores[1].plain("contended");
            stores[1].lock(&claim).await;
            tokio::task::yield_now().await;
            stores[1].release(&claim).await;
        }
    };
    tokio::join!(one, two);
}

fn commands(server: &fencelock_testbed::Redis) -> u64 {
    calls(server, "evalsha") + calls(server, "eval")
}
