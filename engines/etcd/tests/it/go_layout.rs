//! With Go's layout, `etcdctl lock` and this client exclude each other.

use std::process::Stdio;
use std::time::Duration;

use fencelock::engine::Cursor;
use fencelock::{Client, Error, Evict};
use fencelock_testbed::Etcd;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::{soon, until, wait_for};

async fn go(etcd: &Etcd) -> Client {
    let url = format!("{}?layout=concurrency", etcd.url());
    fencelock::connect(&url).await.unwrap()
}

/// Starts `etcdctl lock`, which holds the lock until it is killed. Prints its key once it holds.
fn etcdctl_lock(etcd: &Etcd, name: &str) -> Child {
    Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args([
            "--endpoints",
            &format!("127.0.0.1:{}", etcd.port(0)),
            "lock",
            "--ttl",
            "3",
            name,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("etcdctl is installed (Debian: etcd-client)")
}

/// Waits until it holds. Returns its key, and its output, which must stay open: its next line would kill the process otherwise.
async fn holds(child: &mut Child) -> (String, Lines<BufReader<ChildStdout>>) {
    let stdout = child.stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines();
    let key = soon("etcdctl has the lock", lines.next_line()).await;
    (key.unwrap().unwrap(), lines)
}

/// In Go's layout `a/b` is in the queue of `a`, and keeps the claims of `a` waiting. The owner of `a/b` does not hold `a`.
#[tokio::test]
async fn the_owner_of_a_nested_lock_does_not_hold_the_outer_one() {
    let etcd = Etcd::start().unwrap();
    let us = go(&etcd).await;
    let owner = us.owner();
    let below = us.lock("a/b").owner(&owner).await.unwrap();
    let view = us.look("a").await.unwrap();
    assert_eq!(view.holders.len(), 1, "it is kept out");
    assert_ne!(view.holders[0].owner, owner.as_str());
    assert_eq!(view.holders[0].claim, None);
    let token = below.token();
    assert!(!us.evict("a", token, Evict::Release).await.unwrap());
    assert!(below.is_valid());
    let waiting = wait_for(&us, "a");
    until("it waits", async || {
        us.look("a").await.unwrap().waiters.len() == 1
    })
    .await;
    below.release().await.unwrap();
    let guard = soon("the lock", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    let error = us.try_lock("fencelock").await.unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn etcdctl_and_we_exclude_each_other() {
    let etcd = Etcd::start().unwrap();
    let us = go(&etcd).await;
    let guard = us.lock("jobs/nightly").await.unwrap();
    let mut them = etcdctl_lock(&etcd, "jobs/nightly");
    until("etcdctl waits", async || {
        us.look("jobs/nightly").await.unwrap().waiters.len() == 1
    })
    .await;
    assert_eq!(us.list("jobs/").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    let (key, _output) = holds(&mut them).await;
    assert!(key.starts_with("jobs/nightly/"), "{key}");
    assert!(matches!(
        us.try_lock("jobs/nightly").await,
        Err(Error::Held { .. })
    ));
    let view = us.look("jobs/nightly").await.unwrap();
    assert_eq!((view.holders.len(), view.holders[0].claim), (1, None));
    let theirs = view.token().unwrap();
    let waiting = wait_for(&us, "jobs/nightly");
    until("we wait", async || {
        us.look("jobs/nightly").await.unwrap().waiters.len() == 1
    })
    .await;
    // After the kill, its session ends within three seconds.
    them.kill().await.unwrap();
    let guard = soon("we have it", waiting).await.unwrap().unwrap();
    assert!(guard.token() > theirs);
    guard.release().await.unwrap();
    until("nothing is left", async || {
        us.list("").await.unwrap().is_empty()
    })
    .await;
}

#[tokio::test]
async fn two_claims_of_one_client_exclude_each_other() {
    let etcd = Etcd::start().unwrap();
    let us = go(&etcd).await;
    let guard = us.lock("a").await.unwrap();
    let error = us.try_lock("a").await.unwrap_err();
    assert!(matches!(error, Error::Held { .. }), "{error:?}");
    let unfair = us
        .lock("a")
        .timeout(Duration::from_millis(300))
        .unfair()
        .await
        .unwrap_err();
    assert!(matches!(unfair, Error::TimedOut { .. }), "{unfair:?}");
    assert!(guard.is_valid());
    let error = us.lock("b").shared().await.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    // As in Go, a lock may be below another lock.
    let inner = us.lock("c/d").await.unwrap();
    assert!(matches!(us.try_lock("c").await, Err(Error::Held { .. })));
    inner.release().await.unwrap();
    assert!(guard.sequencer().await.is_ok());
}

/// Keys of other programs lie between those of locks. A page that ends at one of them must not show it as its cursor.
#[tokio::test]
async fn pages_show_no_keys_of_others_and_each_lock_once() {
    let etcd = Etcd::start().unwrap();
    let put = |key: &str| {
        let mut put = std::process::Command::new("etcdctl");
        put.env("ETCDCTL_API", "3")
            .arg(format!("--endpoints=127.0.0.1:{}", etcd.port(0)))
            .args(["put", key, "theirs"]);
        assert!(put.output().unwrap().status.success());
    };
    for key in [
        "aa/secret",
        "b/secret",
        "c/12",
        "ma/secret",
        "x/secret",
        "zz/12",
    ] {
        put(key);
    }
    let (us, mut others) = (go(&etcd).await, Vec::new());
    let mut guards = Vec::new();
    for name in ["a", "d", "m", "y"] {
        guards.push(us.lock(name).await.unwrap());
    }
    for waiters in 1..5 {
        let other = go(&etcd).await;
        others.push(wait_for(&other, "m"));
        crate::waiters(&us, "m", waiters).await;
    }
    let url = format!("{}?layout=concurrency", etcd.url());
    let engine = fencelock::open_engine(&url).await.unwrap();
    let (mut names, mut at) = (Vec::new(), None);
    loop {
        let page = engine.inspect().list("", at, 2).await.unwrap();
        for view in page.items {
            let token = guards.iter().find(|guard| *guard.name() == view.name);
            assert_eq!(view.token(), token.map(|guard| guard.token()), "{view:?}");
            names.push(view.name.to_string());
        }
        at = page.next;
        let Some(Cursor(next)) = &at else { break };
        assert!(
            !next.contains("secret") && !next.ends_with("/12\0"),
            "{next}"
        );
    }
    assert_eq!(names, ["a", "d", "m", "y"]);
    for cursor in ["aa/secret\0", "fencelock/base\0", "zz/x", "a"] {
        let at = Some(Cursor(cursor.to_owned()));
        let refused = engine.inspect().list("", at, 2).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{cursor:?}");
    }
    others.iter().for_each(tokio::task::JoinHandle::abort);
}
