//! The queue: order, modes next to each other, waiters that leave or end.

use std::time::Duration;

use fencelock_core::Engine;
use fencelock_core::engine::{Leave, Withdrawn};

use super::*;

#[tokio::test]
async fn first_come_first_served_over_modes_and_processes() {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let holder = claim("job");
    held(&a, &holder).await;
    let (r1, r2, w, r3) = (shared("job"), shared("job"), claim("job"), shared("job"));
    for (engine, claim, ahead) in [(&a, &r1, 0), (&b, &r2, 1), (&a, &w, 2), (&b, &r3, 3)] {
        assert_eq!(waiting(engine, claim).await.ahead, Some(ahead));
    }
    assert_eq!(
        waiting(&a, &w).await.ahead,
        Some(2),
        "placing again keeps the place"
    );
    b.withdraw(&holder, Leave::Release).await.unwrap();

    // Neither the writer, nor a waiter after it, nor a new claim gets the lock.
    waiting(&a, &w).await;
    waiting(&b, &r3).await;
    busy(&b, &attempt(shared("job"))).await;
    // The second reader need not wait for the first one.
    held(&b, &r2).await;
    held(&a, &r1).await;
    busy(&b, &attempt(shared("job"))).await;
    b.withdraw(&r2, Leave::Release).await.unwrap();
    waiting(&a, &w).await;
    a.withdraw(&r1, Leave::Release).await.unwrap();
    waiting(&b, &r3).await;
    held(&a, &w).await;
    waiting(&b, &r3).await;
    a.withdraw(&w, Leave::Release).await.unwrap();
    held(&b, &r3).await;
    b.withdraw(&r3, Leave::Release).await.unwrap();
    assert_eq!(rows(&directory), 0);
}

/// A busy machine may be too slow once or twice.
async fn best_of_three(what: &str, mut in_time: impl AsyncFnMut() -> bool) {
    for _ in 0..3 {
        if in_time().await {
            return;
        }
    }
    panic!("{what}");
}

#[tokio::test]
async fn a_release_wakes_the_next_and_only_the_next() {
    best_of_three("woken by the recheck", wakes_only_the_next).await;
}

/// Whether it was woken before the recheck.
async fn wakes_only_the_next() -> bool {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let (holder, head, second) = (claim("job"), claim("job"), claim("job"));
    held(&a, &holder).await;
    let head_place = waiting(&b, &head).await;
    let second_place = waiting(&a, &second).await;
    a.withdraw(&holder, Leave::Release).await.unwrap();
    tokio::select! {
        changed = b.wait(&head, &head_place) => assert!(changed.unwrap().is_none()),
        _ = a.wait(&second, &second_place) => {
            assert!(now() >= second_place.recheck, "it is not its turn");
        }
    }
    let in_time = now() < head_place.recheck;
    held(&b, &head).await;
    in_time
}

#[tokio::test]
async fn a_writer_that_leaves_lets_the_readers_after_it_in() {
    best_of_three("let in by the recheck", lets_the_readers_in).await;
}

/// Whether the reader was let in before the recheck.
async fn lets_the_readers_in() -> bool {
    let directory = Directory::new();
    let (a, b) = (directory.open().await, directory.open().await);
    let (holder, writer, reader) = (shared("job"), claim("job"), shared("job"));
    held(&a, &holder).await;
    waiting(&a, &writer).await;
    let place = waiting(&b, &reader).await;
    let left = a.withdraw(&writer, Leave::Release).await.unwrap();
    assert_eq!(left, Withdrawn::LeftQueue);
    assert!(b.wait(&reader, &place).await.unwrap().is_none());
    let in_time = now() < place.recheck;
    held(&b, &reader).await;
    in_time
}

#[tokio::test]
async fn an_attempt_of_a_claim_that_waited_leaves_the_queue() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    let claim = claim("job");
    waiting(&engine, &claim).await;
    busy(&engine, &attempt(claim)).await;
    assert_eq!(rows(&directory), 1);
}

#[tokio::test]
async fn a_waiter_whose_process_ended_is_reaped_at_the_hand_off() {
    best_of_three("its row had to expire", reaps_at_the_hand_off).await;
}

/// Whether the next waiter did not wait until the row of the ended one expired.
async fn reaps_at_the_hand_off() -> bool {
    let directory = Directory::new();
    let (a, b, c) = (
        directory.open().await,
        directory.open().await,
        directory.open().await,
    );
    let (holder, ended, next) = (claim("job"), claim("job"), claim("job"));
    held(&a, &holder).await;
    waiting(&b, &ended).await;
    let place = waiting(&c, &next).await;
    assert_eq!(place.ahead, Some(1));
    b.close().await.unwrap();
    drop(b);
    a.withdraw(&holder, Leave::Release).await.unwrap();
    let released_at = now();
    acquire(&c, &next).await;
    // Its row would expire only after six seconds.
    let waited = now().since(released_at);
    assert_eq!(rows(&directory), 1);
    waited < Duration::from_secs(5)
}

#[tokio::test]
async fn an_unreachable_waiter_blocks_only_for_its_claim_window() {
    let directory = Directory::new();
    let engine = directory.open().await;
    let holder = claim("job");
    held(&engine, &holder).await;
    waiting(&engine, &claim("job")).await;
    // The row of a killed process in another network namespace.
    let until = now() + Duration::from_millis(300);
    let raw = directory.raw();
    let sql = "UPDATE waiters SET bell = NULL, expiry = ?1";
    raw.execute(sql, [until.as_nanos() as i64]).unwrap();
    let next = claim("job");
    assert_eq!(waiting(&engine, &next).await.ahead, Some(1));
    engine.withdraw(&holder, Leave::Release).await.unwrap();
    acquire(&engine, &next).await;
    assert!(now() >= until);
    assert_eq!(rows(&directory), 1);
}

#[tokio::test]
async fn a_slow_waiter_keeps_its_place_after_its_row_expired() {
    let directory = Directory::new();
    let engine = directory.open().await;
    held(&engine, &claim("job")).await;
    let (slow, next) = (claim("job"), claim("job"));
    waiting(&engine, &slow).await;
    waiting(&engine, &next).await;
    let raw = directory.raw();
    let sql = "UPDATE waiters SET expiry = 1 WHERE claim = ?1";
    raw.execute(sql, [slow.id.as_bytes()]).unwrap();
    assert_eq!(waiting(&engine, &slow).await.ahead, Some(0));
    assert_eq!(waiting(&engine, &next).await.ahead, Some(1));
}

#[tokio::test]
async fn a_queue_of_fifty_is_served_in_order() {
    let directory = Directory::new();
    let mut engines = Vec::new();
    for _ in 0..10 {
        engines.push(directory.open().await);
    }
    let holder = claim("job");
    held(&engines[0], &holder).await;
    let (sender, mut grants) = tokio::sync::mpsc::unbounded_channel();
    for count in 0..50 {
        let (engine, sender) = (engines[count % 10].clone(), sender.clone());
        let claim = claim("job");
        waiting(&engine, &claim).await;
        tokio::spawn(async move {
            let grant = acquire(&engine, &claim).await;
            sender.send((count, grant.tokens.first)).unwrap();
            engine.withdraw(&claim, Leave::Release).await.unwrap();
        });
    }
    let start = now();
    engines[0].withdraw(&holder, Leave::Release).await.unwrap();
    let mut last = None;
    for count in 0..50 {
        let (served, token) = grants.recv().await.unwrap();
        assert_eq!(served, count);
        assert!(Some(token) > last);
        last = Some(token);
    }
    let took = now().since(start);
    // Fifty polls of half a second each would take longer.
    assert!(took < Duration::from_secs(5), "{took:?}");
}
