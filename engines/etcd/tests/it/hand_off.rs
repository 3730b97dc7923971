//! Hand-offs in which the next holder does not read the queue, and the ways in which they can fail.

use std::time::Duration;

use fencelock::{Client, Error};
use fencelock_testbed::{Etcd, Flow, Proxy};
use tokio::task::JoinHandle;

use crate::{client, soon, until, wait_for, waiters};

/// Long enough for a wrong hand-off to happen.
const WHILE: Duration = Duration::from_millis(300);

/// How often each client takes the lock in the test of many hand-offs.
const TURNS: usize = 60;

type Waiting = JoinHandle<fencelock::Result<fencelock::Guard>>;

/// A new client that waits as the last of `count`.
async fn join(etcd: &Etcd, observer: &Client, count: usize) -> Waiting {
    let waiting = wait_for(&client(etcd).await, "a");
    waiters(observer, "a", count).await;
    waiting
}

/// The waiter gets the lock, and the store shows it as the holder.
async fn gets_the_lock(observer: &Client, waiting: Waiting) {
    let guard = soon("a grant", waiting).await.unwrap().unwrap();
    let view = observer.look("a").await.unwrap();
    assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn no_hand_off_when_a_waiter_gives_up() {
    let etcd = Etcd::start().unwrap();
    let observer = client(&etcd).await;
    let guard = observer.lock("a").await.unwrap();
    let second = join(&etcd, &observer, 1).await;
    let third = join(&etcd, &observer, 2).await;
    let last = join(&etcd, &observer, 3).await;
    // Its predecessor gives up, and then the one before that. The holder stays.
    for (gone, left) in [(third, 2), (second, 1)] {
        gone.abort();
        waiters(&observer, "a", left).await;
        tokio::time::sleep(WHILE).await;
        assert!(!last.is_finished() && guard.is_valid());
    }
    guard.release().await.unwrap();
    gets_the_lock(&observer, last).await;
}

/// The waiter's key is deleted as in a release, but there is no release notice.
#[tokio::test]
async fn no_hand_off_when_the_session_of_a_waiter_ends() {
    let etcd = Etcd::start().unwrap();
    let observer = client(&etcd).await;
    let guard = observer.lock("a").await.unwrap();
    let second = join(&etcd, &observer, 1).await;
    let before = etcd.leases().unwrap();
    // This client has a session of its own. Its claim joins the queue again, at the end.
    let third = join(&etcd, &observer, 2).await;
    let of_third = etcd.leases().unwrap();
    let last = join(&etcd, &observer, 3).await;
    for lease in of_third.iter().filter(|lease| !before.contains(lease)) {
        etcd.revoke(lease).unwrap();
    }
    tokio::time::sleep(WHILE).await;
    assert!(!last.is_finished() && guard.is_valid());
    waiters(&observer, "a", 3).await;
    guard.release().await.unwrap();
    for waiting in [second, last, third] {
        gets_the_lock(&observer, waiting).await;
    }
}

/// The release of a contended lock leaves a notice for a while, and then no key.
#[tokio::test]
async fn release_notices_are_deleted() {
    let etcd = Etcd::start().unwrap();
    let observer = client(&etcd).await;
    let guard = observer.lock("a").await.unwrap();
    let second = join(&etcd, &observer, 1).await;
    let last = join(&etcd, &observer, 2).await;
    guard.release().await.unwrap();
    gets_the_lock(&observer, second).await;
    assert_eq!(etcd.keys("fencelock/released/a/").unwrap(), 1);
    gets_the_lock(&observer, last).await;
    until("nothing is left", async || {
        etcd.keys("fencelock/released/").unwrap() == 0
    })
    .await;
}

/// A new claim sees the waiters, whether its client knows that the lock is contended or not.
#[tokio::test]
async fn no_claim_overtakes_a_head_that_has_not_noticed_yet() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let observer = client(&etcd).await;
    let guard = observer.lock("a").await.unwrap();
    let far = fencelock::connect(etcd.url_at(&[proxy.port()]))
        .await
        .unwrap();
    let first = wait_for(&far, "a");
    waiters(&observer, "a", 1).await;
    // The claim is the head of the queue, and does not know it yet.
    proxy.answers(Flow::Hold);
    guard.release().await.unwrap();
    let new = client(&etcd).await;
    for _ in 0..2 {
        let error = new.try_lock("a").await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error:?}");
    }
    let second = wait_for(&new, "a");
    waiters(&observer, "a", 1).await;
    tokio::time::sleep(WHILE).await;
    assert!(!second.is_finished() && !first.is_finished());
    proxy.answers(Flow::Pass);
    gets_the_lock(&observer, first).await;
    gets_the_lock(&observer, second).await;
}

#[tokio::test]
async fn a_writer_waits_for_all_readers_before_it() {
    let etcd = Etcd::start().unwrap();
    let observer = client(&etcd).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(client(&etcd).await.lock("a").shared().await.unwrap());
    }
    let writer = join(&etcd, &observer, 1).await;
    // In reverse order: the last reader is the writer's predecessor.
    while let Some(reader) = readers.pop() {
        tokio::time::sleep(WHILE).await;
        assert!(!writer.is_finished());
        reader.release().await.unwrap();
    }
    gets_the_lock(&observer, writer).await;
}

#[tokio::test]
async fn a_hand_off_over_a_lost_connection_is_not_missed() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let near = client(&etcd).await;
    let guard = near.lock("a").await.unwrap();
    let far = fencelock::connect(etcd.url_at(&[proxy.port()]))
        .await
        .unwrap();
    let waiting = wait_for(&far, "a");
    waiters(&near, "a", 1).await;
    proxy.answers(Flow::Lose);
    guard.release().await.unwrap();
    tokio::time::sleep(WHILE).await;
    assert!(!waiting.is_finished());
    proxy.answers(Flow::Pass);
    proxy.reset();
    gets_the_lock(&near, waiting).await;
}

/// A member may report the end of a key just before its own reads show that. A waiter that reads then sees the old
/// state.
#[tokio::test(flavor = "multi_thread")]
async fn no_end_is_missed_by_waiters_that_read() {
    let etcd = Etcd::start().unwrap();
    // Without release notices, and with readers.
    for (layout, readers) in [("concurrency", false), ("fencelock", true)] {
        let url = format!("{}?layout={layout}", etcd.url());
        let mut all = Vec::new();
        for number in 0..6 {
            let client = fencelock::connect(&url).await.unwrap();
            let shared = readers && number % 2 == 0;
            all.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let request = client.lock("a");
                    let request = if shared { request.shared() } else { request };
                    request.await.unwrap().release().await.unwrap();
                }
            }));
        }
        for one in all {
            soon("all its holds", one).await.unwrap();
        }
    }
}

#[tokio::test]
async fn waiters_are_served_after_a_compaction() {
    let etcd = Etcd::start().unwrap();
    let observer = client(&etcd).await;
    let guard = observer.lock("a").await.unwrap();
    let second = join(&etcd, &observer, 1).await;
    let last = join(&etcd, &observer, 2).await;
    for _ in 0..20 {
        observer.lock("b").await.unwrap().release().await.unwrap();
    }
    etcd.compact().unwrap();
    guard.release().await.unwrap();
    gets_the_lock(&observer, second).await;
    gets_the_lock(&observer, last).await;
}

/// A key is not used again if a late request could still change it.
#[tokio::test]
async fn a_key_is_reused_unless_a_request_for_it_had_no_reply() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=1500ms", etcd.url_at(&[proxy.port()]));
    let one = fencelock::connect(&url).await.unwrap();
    let key = || etcd.encoded_keys("fencelock/lock/a/").unwrap();
    let first = one.lock("a").await.unwrap();
    let named = key();
    first.release().await.unwrap();
    let second = one.lock("a").await.unwrap();
    assert_eq!(key(), named);
    proxy.both(Flow::Hold);
    let error = soon("an error", second.release()).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    proxy.both(Flow::Pass);
    until("the release is done", async || key().is_empty()).await;
    // Its reply arrives late.
    tokio::time::sleep(WHILE).await;
    let third = soon("the lock", one.lock("a")).await.unwrap();
    assert_ne!(key(), named);
    tokio::time::sleep(WHILE).await;
    assert_eq!(key().len(), 1);
    third.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_one_client_for_one_lock_have_different_keys() {
    const CLAIMS: usize = 20;
    let etcd = Etcd::start().unwrap();
    let one = client(&etcd).await;
    for _ in 0..3 {
        let reader = |_| {
            let one = one.clone();
            tokio::spawn(async move { one.lock("a").shared().await })
        };
        let waiting: Vec<Waiting> = (0..CLAIMS).map(reader).collect();
        let mut guards = Vec::new();
        for reader in waiting {
            guards.push(soon("a reader", reader).await.unwrap().unwrap());
        }
        let view = one.look("a").await.unwrap();
        assert_eq!(view.holders.len(), CLAIMS);
        for guard in guards {
            guard.release().await.unwrap();
        }
        assert_eq!(etcd.keys("fencelock/lock/").unwrap(), 0);
    }
}
