//! A snapshot is restored: later changes are undone, and revisions decrease.

use std::collections::HashMap;
use std::time::Duration;

use fencelock::{Client, Error, Token};
use fencelock_testbed::Etcd;

use crate::{client, soon, until};

/// The protected resource. It refuses a token that is not above all earlier ones.
#[derive(Default)]
struct Fence(HashMap<String, Token>);

impl Fence {
    /// Takes the lock and passes with its token.
    async fn pass(&mut self, client: &Client, name: &str) -> Token {
        let take = async {
            loop {
                match client.lock(name).ttl(Duration::from_secs(3)).await {
                    Ok(guard) => return guard,
                    // The connection that was opened before the restore breaks.
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let guard = soon("the lock is granted", take).await;
        let token = guard.token();
        let before = self.0.insert(name.to_owned(), token);
        assert!(before < Some(token), "{token:?} after {before:?} of {name}");
        drop(guard.release().await);
        token
    }
}

#[tokio::test]
async fn tokens_keep_increasing_after_a_snapshot_is_restored() {
    for members in [1, 3] {
        let etcd = Etcd::cluster(members).start().unwrap();
        let before = [client(&etcd).await, client(&etcd).await];
        let mut fence = Fence::default();
        for one in &before {
            fence.pass(one, "a").await;
        }
        let snapshot = etcd.snapshot(0).unwrap();
        for _ in 0..40 {
            for one in &before {
                fence.pass(one, "a").await;
            }
        }
        etcd.restore_snapshot(&snapshot).unwrap();
        let after = client(&etcd).await;
        for _ in 0..3 {
            for one in [&before[1], &after, &before[0]] {
                fence.pass(one, "a").await;
            }
        }
        // A client that has seen none of the undone changes comes first.
        let snapshot = etcd.snapshot(0).unwrap();
        for _ in 0..10 {
            fence.pass(&before[0], "a").await;
        }
        etcd.restore_snapshot(&snapshot).unwrap();
        fence.pass(&before[1], "a").await;
        fence.pass(&before[0], "a").await;
        // Once more, now with a new client first.
        let snapshot = etcd.snapshot(0).unwrap();
        fence.pass(&before[0], "a").await;
        etcd.restore_snapshot(&snapshot).unwrap();
        let new = client(&etcd).await;
        for one in [&new, &before[0], &before[1], &after] {
            fence.pass(one, "a").await;
        }
    }
}

/// The session is alive, and would keep every key of the snapshot alive.
#[tokio::test]
async fn a_client_deletes_keys_that_a_snapshot_brought_back() {
    let etcd = Etcd::start().unwrap();
    let (one, two) = (client(&etcd).await, client(&etcd).await);
    let ttl = Duration::from_secs(3);
    let kept = one.lock("kept").ttl(ttl).await.unwrap();
    let released = one.lock("released").ttl(ttl).await.unwrap();
    // The first renewal moves a hold to the session of its ttl.
    until("both were renewed", async || {
        etcd.leases().unwrap().len() == 1
    })
    .await;
    let snapshot = etcd.snapshot(0).unwrap();
    released.release().await.unwrap();
    etcd.restore_snapshot(&snapshot).unwrap();
    // The session is kept alive for the other hold, so the key does not expire.
    let next = soon("it is free again", async {
        loop {
            match two.lock("released").await {
                Ok(guard) => return guard,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    })
    .await;
    assert!(next.is_valid());
    let kept_out = two.try_lock("kept").await;
    assert!(matches!(kept_out, Err(Error::Held { .. })));
    assert!(kept.is_valid(), "the snapshot has this hold");
    kept.release().await.unwrap();
    next.release().await.unwrap();
}

/// A user with read access can only look.
#[tokio::test]
async fn inspection_writes_nothing() {
    let etcd = Etcd::start().unwrap();
    let watcher = client(&etcd).await;
    watcher.list("").await.unwrap();
    watcher.look("a").await.unwrap();
    watcher.diagnose().await.unwrap();
    assert_eq!(etcd.keys("fencelock/").unwrap(), 0);
}
