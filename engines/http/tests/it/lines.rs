//! Requests for a lock that was found contended: one request reports the place of a claim, and later its grant.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock::{Client, Error, Memory};

use crate::batches::served;
use crate::{connect, serve, soon, until, wait_for};

/// A place in the queue of a store in memory ends by itself half a second later.
const SOON: Duration = Duration::from_millis(3500);

const CLAIM: &str = "/v1/claims/{id}";

async fn waiters(client: &Client) -> usize {
    client.look("a").await.unwrap().waiters.len()
}

#[tokio::test]
async fn one_request_takes_a_contended_lock() {
    let server = serve(Arc::new(Memory::new()), 0).await;
    let url = format!("fencelock+http://{}", server.address());
    let (one, two) = (connect(&url).await, connect(&url).await);
    for round in 0..3 {
        let held = soon("the first", one.lock("a")).await.unwrap();
        let before = served(&server, CLAIM).await;
        let waiter = wait_for(&two, "a");
        until("it waits", async || waiters(&one).await == 1).await;
        held.release().await.unwrap();
        let held = soon("the second", waiter).await.unwrap().unwrap();
        // In the first round the client does not know yet that the lock is contended: it asks for its place, and then it waits.
        let requests = if round == 0 { 2 } else { 1 };
        assert_eq!(served(&server, CLAIM).await - before, requests);
        held.release().await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_wait_that_was_given_up() {
    let server = serve(Arc::new(Memory::new()), 0).await;
    let url = format!("fencelock+http://{}", server.address());
    let (one, two) = (connect(&url).await, connect(&url).await);
    let held = soon("the first", one.lock("a")).await.unwrap();
    for _ in 0..3 {
        let begun = Instant::now();
        let waiter = two.lock("a").timeout(Duration::from_millis(100));
        let error = soon("giving up", waiter).await.unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error:?}");
        until("it has left", async || waiters(&one).await == 0).await;
        until("its poll has ended", async || server.service().polls() == 0).await;
        let took = begun.elapsed();
        assert!(took < SOON, "its place ended by itself: {took:?}");
    }
    let waiter = wait_for(&two, "a");
    until("it waits", async || waiters(&one).await == 1).await;
    // The wait is dropped.
    waiter.abort();
    until("it has left", async || waiters(&one).await == 0).await;
    held.release().await.unwrap();
    until("it is free", async || {
        one.look("a").await.unwrap().holders.is_empty()
    })
    .await;
}
