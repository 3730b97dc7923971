//! Stores that are opened only for inspection: nothing is written. A server where no lock can be taken can be inspected, and
//! the findings say why no lock can be taken.

use std::time::Instant;

use fencelock_core::engine::{Evict, Withdrawn};
use fencelock_core::{Engine, Error, Finding, LockName, Result, StoreUrl, Token};
use fencelock_redis::Redis;
use fencelock_testbed::{Redis as Server, RedisCluster, RedisSentinel};

use crate::support::{Store, ms, open, server};

async fn connect(url: &str, inspect_only: bool) -> Result<Redis> {
    let mut url = StoreUrl::parse(url).unwrap();
    url.inspect_only = inspect_only;
    Redis::connect(url).await
}

/// The error when the store is opened to take locks.
async fn refused(url: &str) -> Error {
    match connect(url, false).await {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error,
    }
}

/// Takes an exclusive lock, with a waiter, and a shared one.
async fn hold(store: &Store) {
    let holder = store.claim("alone").label("holds");
    store.held(&holder).await;
    let waiter = store.claim("alone").label("waits");
    store.waits(&waiter).await;
    store.held(&store.shared("shared")).await;
    store.held(&store.shared("shared")).await;
}

/// Looks at everything. Returns the findings.
async fn look(url: &str) -> Vec<Finding> {
    let engine = connect(url, true).await.unwrap();
    let look = async |name: &str| {
        let name = LockName::new(name).unwrap();
        engine.inspect().look(&name).await.unwrap()
    };
    let alone = look("alone").await;
    assert_eq!(alone.holders.len(), 1, "{alone:?}");
    assert_eq!(alone.holders[0].label.as_deref(), Some("holds"));
    assert!(alone.holders[0].token.is_some() && alone.holders[0].ttl_left.unwrap() > ms(1000));
    assert_eq!(alone.waiters.len(), 1, "{alone:?}");
    assert_eq!(alone.waiters[0].label.as_deref(), Some("waits"));
    let shared = look("shared").await;
    assert_eq!(shared.holders.len(), 2, "{shared:?}");
    assert!(look("free").await.holders.is_empty());
    let mut held = 0;
    let mut at = None;
    loop {
        let page = engine.inspect().list("", at, 100).await.unwrap();
        held += page.items.len();
        at = page.next;
        if at.is_none() {
            break;
        }
    }
    assert_eq!(held, 2);
    let findings = engine.inspect().diagnose().await.unwrap();
    // A store that is opened for inspection cannot change anything.
    let name = LockName::new("alone").unwrap();
    let evicted = engine
        .inspect()
        .evict(&name, Token(1), Evict::Release)
        .await;
    let error = evicted.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    findings
}

fn says(findings: &[Finding], words: &[&str]) {
    let told = findings.iter().any(|finding| {
        let text = format!("{} {}", finding.what, finding.change);
        words.iter().all(|word| text.contains(word))
    });
    assert!(told, "{words:?}: {findings:#?}");
}

/// The error must contain no hash of a script.
fn is_plain(error: &Error) {
    let text = error.to_string();
    let hash = |word: &str| word.len() == 40 && word.chars().all(|c| c.is_ascii_hexdigit());
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric());
    assert!(!words.any(hash), "{text}");
}

#[tokio::test]
async fn inspection_writes_nothing() {
    let server = server();
    let engine = connect(&server.url(), true).await.unwrap();
    let name = LockName::new("a").unwrap();
    assert!(
        engine
            .inspect()
            .look(&name)
            .await
            .unwrap()
            .holders
            .is_empty()
    );
    engine.inspect().list("", None, 10).await.unwrap();
    engine.inspect().diagnose().await.unwrap();
    let keys: Vec<String> = server.command(&["KEYS", "*"]).unwrap();
    assert!(keys.is_empty(), "{keys:?}");
    let info: String = server.command(&["INFO", "persistence"]).unwrap();
    assert!(info.contains("rdb_changes_since_last_save:0\r"), "{info}");
}

#[tokio::test]
async fn a_replica_can_be_inspected_and_nothing_is_taken_there() {
    let (master, replica) = (server(), server());
    let store = open(&master.url()).await;
    hold(&store).await;
    let port = master.port().to_string();
    let _: String = replica.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let begin = Instant::now();
    while replica.command::<i64>(&["EXISTS", "shared"]).unwrap_or(0) == 0 {
        assert!(begin.elapsed() < ms(20_000));
        tokio::time::sleep(ms(10)).await;
    }
    says(&look(&replica.url()).await, &["is a replica", &port]);
    let error = refused(&replica.url()).await;
    assert!(matches!(error, Error::Config { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("replica") && text.contains(&port), "{text}");
    // The master becomes a replica of the other server while the store is open. That may be temporary.
    let other = replica.port().to_string();
    let _: String = replica.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let _: String = master.command(&["REPLICAOF", "127.0.0.1", &other]).unwrap();
    let error = store.engine.place(&store.plain("new")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    is_plain(&error);
}

#[tokio::test]
async fn a_full_server_can_be_inspected_and_is_reported() {
    let server = server();
    let store = open(&server.url()).await;
    hold(&store).await;
    let kept = store.claim("kept");
    store.held(&kept).await;
    let _: String = server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    assert_eq!(store.release(&kept).await, Withdrawn::Released);
    says(&look(&server.url()).await, &["memory is full", "maxmemory"]);
    for claim in [store.plain("new"), store.claim("new")] {
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
        is_plain(&error);
    }
    let error = refused(&server.url()).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
}

/// The user may run no scripts and use no channels.
#[tokio::test]
async fn a_user_who_may_only_read_can_inspect() {
    let reads = "resetchannels ~* -@all +hello +client|id +info +config|get +time +get +pttl +zrange +hgetall +hmget +scan";
    let server = Server::builder()
        .user("reads", "secret", reads)
        .user("all-but-writes", "secret", "~* &* +@all -@write")
        .user("read-keys", "secret", "%R~* &* +@all")
        .start()
        .unwrap();
    let store = open(&server.url()).await;
    hold(&store).await;
    for user in ["reads", "all-but-writes", "read-keys"] {
        let url = format!("redis://{user}:secret@127.0.0.1:{}", server.port());
        let findings = look(&url).await;
        says(&findings, &["no lock can be taken", "allow"]);
        assert!(!format!("{findings:?}").contains("secret"));
        let error = refused(&url).await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        is_plain(&error);
    }
    let findings = look(&server.url()).await;
    let untakeable = |finding: &&Finding| finding.what.contains("no lock can be taken");
    assert!(findings.iter().find(untakeable).is_none(), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_writes_can_be_inspected_through_sentinels() {
    let group = RedisSentinel::start().unwrap();
    let store = open(&group.url()).await;
    hold(&store).await;
    let _: String = group.servers()[0]
        .command(&["CONFIG", "SET", "min-replicas-to-write", "5"])
        .unwrap();
    for options in ["", "&promotion-delay=30s&restart-delay=30s"] {
        let findings = look(&format!("{}{options}", group.url())).await;
        says(
            &findings,
            &["no lock can be taken", "min-replicas-to-write"],
        );
    }
    let error = refused(&group.url()).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("min-replicas-to-write"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cluster_can_be_inspected() {
    let cluster = RedisCluster::start(3, 0, 1000, None).unwrap();
    let store = open(&cluster.url()).await;
    hold(&store).await;
    let keys = || -> usize {
        let all = cluster.nodes().iter();
        let counts = all.map(|node| node.command::<usize>(&["DBSIZE"]).unwrap());
        counts.sum()
    };
    let before = keys();
    look(&cluster.url()).await;
    assert_eq!(keys(), before);
    for node in cluster.nodes() {
        let _: String = node.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    }
    let findings = look(&cluster.url()).await;
    for node in cluster.nodes() {
        let port = node.port().to_string();
        says(&findings, &["memory is full", &port]);
    }
    let error = store.engine.place(&store.claim("new")).await.unwrap_err();
    assert!(error.to_string().contains("maxmemory"), "{error}");
    is_plain(&error);
}
