//! A turn that is taken without a look at the line, and its bad days.

use std::time::Duration;

use fencelock::{Client, Error};
use fencelock_testbed::{Etcd, Flow, Proxy};
use tokio::task::JoinHandle;

use crate::{client, soon, until, wait_for, waiters};

/// Long enough for a turn that is not to be taken.
const WHILE: Duration = Duration::from_millis(300);

/// How often each has the lock where it is to have it often.
const TURNS: usize = 60;

type Waiting = JoinHandle<fencelock::Result<fencelock::Guard>>;

/// Waits in line as the last of so many.
async fn stand(etcd: &Etcd, sees: &Client, count: usize) -> Waiting {
    let waiting = wait_for(&client(etcd).await, "a");
    waiters(sees, "a", count).await;
    waiting
}

/// One who waited has the lock, and the store says so.
async fn takes_its_turn(sees: &Client, waiting: Waiting) {
    let guard = soon("a turn", waiting).await.unwrap().unwrap();
    let view = sees.look("a").await.unwrap();
    assert_eq!(view.holders[0].claim, Some(guard.claim_id()));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn one_that_gave_up_gives_its_turn_to_nobody() {
    let etcd = Etcd::start().unwrap();
    let sees = client(&etcd).await;
    let guard = sees.lock("a").await.unwrap();
    let second = stand(&etcd, &sees, 1).await;
    let third = stand(&etcd, &sees, 2).await;
    let last = stand(&etcd, &sees, 3).await;
    // Whoever stands right before it goes, and then whoever does by then; the holder stays.
    for (gone, left) in [(third, 2), (second, 1)] {
        gone.abort();
        waiters(&sees, "a", left).await;
        tokio::time::sleep(WHILE).await;
        assert!(!last.is_finished() && guard.is_valid());
    }
    guard.release().await.unwrap();
    takes_its_turn(&sees, last).await;
}

/// Its key goes as it does when a hold is released, but nobody said so.
#[tokio::test]
async fn one_whose_session_ended_gives_its_turn_to_nobody() {
    let etcd = Etcd::start().unwrap();
    let sees = client(&etcd).await;
    let guard = sees.lock("a").await.unwrap();
    let second = stand(&etcd, &sees, 1).await;
    let before = etcd.leases().unwrap();
    // It waits in a session of its own, and comes back behind the last.
    let third = stand(&etcd, &sees, 2).await;
    let of_third = etcd.leases().unwrap();
    let last = stand(&etcd, &sees, 3).await;
    for lease in of_third.iter().filter(|lease| !before.contains(lease)) {
        etcd.revoke(lease).unwrap();
    }
    tokio::time::sleep(WHILE).await;
    assert!(!last.is_finished() && guard.is_valid());
    waiters(&sees, "a", 3).await;
    guard.release().await.unwrap();
    for waiting in [second, last, third] {
        takes_its_turn(&sees, waiting).await;
    }
}

/// Of a release that others wait for there is a word for a while, and then nothing.
#[tokio::test]
async fn the_word_of_a_release_does_not_stay() {
    let etcd = Etcd::start().unwrap();
    let sees = client(&etcd).await;
    let guard = sees.lock("a").await.unwrap();
    let second = stand(&etcd, &sees, 1).await;
    let last = stand(&etcd, &sees, 2).await;
    guard.release().await.unwrap();
    takes_its_turn(&sees, second).await;
    assert_eq!(etcd.keys("fencelock/released/a/").unwrap(), 1);
    takes_its_turn(&sees, last).await;
    until("nothing is left of it", async || {
        etcd.keys("fencelock/released/").unwrap() == 0
    })
    .await;
}

/// Whoever comes anew finds those who stand in line, whether the lock is known to be in demand or not.
#[tokio::test]
async fn nobody_overtakes_a_line_whose_head_has_not_noticed_yet() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let sees = client(&etcd).await;
    let guard = sees.lock("a").await.unwrap();
    let far = fencelock::connect(&etcd.url_at(&[proxy.port()]))
        .await
        .unwrap();
    let first = wait_for(&far, "a");
    waiters(&sees, "a", 1).await;
    // It is the first by then, and does not know.
    proxy.answers(Flow::Hold);
    guard.release().await.unwrap();
    let new = client(&etcd).await;
    for _ in 0..2 {
        let error = new.try_lock("a").await.unwrap_err();
        assert!(matches!(error, Error::Held { .. }), "{error:?}");
    }
    let second = wait_for(&new, "a");
    waiters(&sees, "a", 1).await;
    tokio::time::sleep(WHILE).await;
    assert!(!second.is_finished() && !first.is_finished());
    proxy.answers(Flow::Pass);
    takes_its_turn(&sees, first).await;
    takes_its_turn(&sees, second).await;
}

#[tokio::test]
async fn a_writer_behind_readers_waits_for_them_all() {
    let etcd = Etcd::start().unwrap();
    let sees = client(&etcd).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(client(&etcd).await.lock("a").shared().await.unwrap());
    }
    let writer = stand(&etcd, &sees, 1).await;
    // The last first: it stands right before the writer.
    while let Some(reader) = readers.pop() {
        tokio::time::sleep(WHILE).await;
        assert!(!writer.is_finished());
        reader.release().await.unwrap();
    }
    takes_its_turn(&sees, writer).await;
}

#[tokio::test]
async fn a_turn_that_was_told_over_a_lost_connection_is_not_missed() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let near = client(&etcd).await;
    let guard = near.lock("a").await.unwrap();
    let far = fencelock::connect(&etcd.url_at(&[proxy.port()]))
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
    takes_its_turn(&near, waiting).await;
}

/// A member tells of an end just before its own reads show it: now and then, whoever looks because it was told sees what was.
#[tokio::test(flavor = "multi_thread")]
async fn no_end_is_missed_by_those_who_look() {
    let etcd = Etcd::start().unwrap();
    // Without the word of a release, and beside others.
    for (layout, readers) in [("concurrency", false), ("fencelock", true)] {
        let url = format!("{}?layout={layout}", etcd.url());
        let mut all = Vec::new();
        for number in 0..6 {
            let client = fencelock::connect(&url).await.unwrap();
            let shared = readers && number % 2 == 0;
            all.push(tokio::spawn(async move {
                for _ in 0..TURNS {
                    let wish = client.lock("a");
                    let wish = if shared { wish.shared() } else { wish };
                    wish.await.unwrap().release().await.unwrap();
                }
            }));
        }
        for one in all {
            soon("all its turns", one).await.unwrap();
        }
    }
}

#[tokio::test]
async fn waiters_are_served_though_history_is_forgotten() {
    let etcd = Etcd::start().unwrap();
    let sees = client(&etcd).await;
    let guard = sees.lock("a").await.unwrap();
    let second = stand(&etcd, &sees, 1).await;
    let last = stand(&etcd, &sees, 2).await;
    for _ in 0..20 {
        sees.lock("b").await.unwrap().release().await.unwrap();
    }
    etcd.compact().unwrap();
    guard.release().await.unwrap();
    takes_its_turn(&sees, second).await;
    takes_its_turn(&sees, last).await;
}

/// A late request could hit it: then its name is given up.
#[tokio::test]
async fn a_key_is_used_again_unless_a_request_about_it_had_no_answer() {
    let etcd = Etcd::start().unwrap();
    let proxy = Proxy::start(etcd.port(0)).unwrap();
    let url = format!("{}?response-timeout=300ms", etcd.url_at(&[proxy.port()]));
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
    // And its answer is there.
    tokio::time::sleep(WHILE).await;
    let third = soon("the lock", one.lock("a")).await.unwrap();
    assert_ne!(key(), named);
    tokio::time::sleep(WHILE).await;
    assert_eq!(key().len(), 1);
    third.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_of_one_client_at_one_lock_have_keys_of_their_own() {
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
