//! Locks of other clients, keys of other types, and other versions.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Evict, Standing, Withdrawn};
use fencelock_core::{Clock, Engine, Error};
use fencelock_testbed::Redis as Server;

use crate::support::{Store, ms, open, server};

#[tokio::test]
async fn other_clients_and_this_one_exclude_each_other() {
    let server = server();
    let store = open(&server.url()).await;
    for claim in [store.plain("x"), store.claim("x"), store.shared("x")] {
        store.held(&claim).await;
        let set: Option<String> = server
            .command(&["SET", "x", "theirs", "NX", "PX", "9000"])
            .unwrap();
        assert_eq!(set, None);
        store.release(&claim).await;
    }
    let _: String = server
        .command(&["SET", "x", "theirs", "NX", "PX", "300"])
        .unwrap();
    for claim in [store.plain("x"), store.claim("x"), store.shared("x")] {
        let claim = claim.wait(false);
        let standing = store.engine.place(&claim).await.unwrap();
        assert!(matches!(standing, Standing::Busy), "{standing:?}");
    }
    let begin = Instant::now();
    store.lock(&store.claim("x")).await;
    assert!(
        begin.elapsed() < Duration::from_secs(15),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn the_whole_queue_soon_sees_the_release_of_another_client() {
    let server = server();
    let store = open(&server.url()).await;
    // The fastest of some turns, since the machine may be busy.
    let mut fastest = Duration::MAX;
    for _ in 0..4 {
        fastest = fastest.min(two_behind_another_client(&server, &store).await);
    }
    assert!(fastest < ms(600), "{fastest:?}");
}

/// How long after the release of another client two waiters have held the lock.
async fn two_behind_another_client(server: &Server, store: &Store) -> Duration {
    let _: String = server.command(&["SET", "y", "theirs"]).unwrap();
    let (first, second) = (store.claim("y"), store.claim("y"));
    let view = store.look(&first.name).await;
    assert_eq!(view.holders[0].ttl_left, None, "it has no end");
    assert_eq!(view.holders[0].claim, None);
    assert_eq!(view.holders[0].owner, "theirs");
    let place = store.waits(&first).await;
    assert!(place.recheck.since(Clock::Boot.now()) <= ms(200));
    store.waits(&second).await;
    let _: i64 = server.command(&["DEL", "y"]).unwrap();
    let begin = Instant::now();
    store.lock(&first).await;
    store.release(&first).await;
    store.lock(&second).await;
    let took = begin.elapsed();
    store.release(&second).await;
    took
}

#[tokio::test]
async fn a_lock_that_was_deleted_is_lost_and_the_queue_goes_on() {
    let server = server();
    let store = open(&server.url()).await;
    let (first, second) = (store.claim("z"), store.claim("z"));
    let token = store.held(&first).await.tokens.first;
    let place = store.waits(&second).await;
    let _: i64 = server.command(&["DEL", "z"]).unwrap();
    store.lost(&first, token).await;
    // The renewal that found the loss has served the queue.
    let grant = tokio::time::timeout(ms(15_000), store.granted(&second, &place)).await;
    assert!(grant.unwrap().tokens.first > token);
    assert_eq!(store.release(&first).await, Withdrawn::NotOwner);
}

#[tokio::test]
async fn a_deleted_lock_is_noticed_by_the_recheck_at_the_latest() {
    let server = server();
    let store = open(&server.url()).await;
    let (first, second) = (store.claim("z"), store.claim("z"));
    store.held(&first).await;
    store.waits(&second).await;
    let _: i64 = server.command(&["DEL", "z"]).unwrap();
    let begin = Instant::now();
    store.lock(&second).await;
    assert!(begin.elapsed() < ms(15_000), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn another_type_is_named_and_left_alone() {
    let server = server();
    let store = open(&server.url()).await;
    let _: i64 = server.command(&["HSET", "h", "field", "1"]).unwrap();
    for claim in [store.plain("h"), store.claim("h"), store.shared("h")] {
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(matches!(error, Error::NotALock { .. }), "{error}");
        let error = store.engine.inspect().look(&claim.name).await.unwrap_err();
        assert!(matches!(error, Error::NotALock { .. }), "{error}");
    }
    assert_eq!(
        server.command::<String>(&["HGET", "h", "field"]).unwrap(),
        "1"
    );
    let page = store.engine.inspect().list("", None, 100).await.unwrap();
    assert!(page.items.is_empty(), "{page:?}");
}

#[tokio::test]
async fn a_newer_format_is_refused_and_left_alone() {
    let server = server();
    let store = open(&server.url()).await;
    let value = "fl2:something that only later versions read";
    let _: String = server.command(&["SET", "v", value]).unwrap();
    for claim in [store.plain("v"), store.claim("v"), store.shared("v")] {
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(matches!(error, Error::NotALock { .. }), "{error}");
        assert_eq!(store.release(&claim).await, Withdrawn::NotOwner);
        let error = store.engine.inspect().look(&claim.name).await.unwrap_err();
        assert!(matches!(error, Error::NotALock { .. }), "{error}");
    }
    let evict = Evict::Release;
    let name = store.claim("v").name;
    let error = store
        .engine
        .inspect()
        .evict(&name, fencelock_core::Token(1), evict)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotALock { .. }), "{error}");
    assert_eq!(server.command::<String>(&["GET", "v"]).unwrap(), value);
}
