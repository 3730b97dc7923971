//! Slots: where keys lie, who hears of a grant, and what happens to a lock on its way from one node to another.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Event, Evict, HeldClaim, Renewal, Withdrawn};
use fencelock_core::{Engine, Error, StoreUrl};
use fencelock_redis::Redis;
#[cfg(feature = "tls")]
use fencelock_testbed::Redis as Server;
use fencelock_testbed::RedisCluster;

use crate::support::{ms, open, server};

/// One cluster for what needs no other; each with names of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots() {
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    odd_names_lie_together(&cluster).await;
    grants_are_told_to_those_who_wait(&cluster).await;
    events_find_a_holder(&cluster).await;
    many_renewals_go_out_together(&cluster).await;
    a_moved_lock_is_still_held(&cluster).await;
    a_user_with_the_least_rights(&cluster).await;
    wrong_addresses(&cluster).await;
}

async fn odd_names_lie_together(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for name in ["a}b", "{}a", "}a{", "a{t}b", "{t}", "{", "}", "plain"] {
        for first in [one.claim(name), one.shared(name)] {
            one.held(&first).await;
            let second = two.claim(name);
            let place = two.waits(&second).await;
            assert_eq!(one.release(&first).await, Withdrawn::Released);
            two.granted(&second, &place).await;
            assert_eq!(two.release(&second).await, Withdrawn::Released);
        }
    }
    for node in cluster.nodes() {
        let keys: Vec<String> = node.command(&["KEYS", "*"]).unwrap();
        let counters = keys
            .iter()
            .all(|key| key.starts_with("fencelock:counter:{"));
        assert!(counters, "{keys:?}");
    }
}

async fn grants_are_told_to_those_who_wait(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for i in 0..20 {
        let name = format!("push/{i}");
        let (first, second) = (one.claim(&name), two.claim(&name));
        let token = one.held(&first).await.tokens.first;
        let place = two.waits(&second).await;
        let begin = Instant::now();
        one.release(&first).await;
        let grant = two.granted(&second, &place).await;
        assert!(grant.tokens.first > token);
        // Not by asking again, which would be after half a second at least.
        assert!(begin.elapsed() < ms(400), "{:?}", begin.elapsed());
        two.release(&second).await;
    }
}

async fn events_find_a_holder(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let claim = one.claim("event");
    let token = one.held(&claim).await.tokens.first;
    for (how, event) in [
        (Evict::Ask, Event::Asked(claim.id)),
        (Evict::Release, Event::Lost(claim.id)),
    ] {
        assert!(two.engine.evict(&claim.name, token, how).await.unwrap());
        loop {
            let heard = tokio::time::timeout(Duration::from_secs(5), one.engine.events()).await;
            let heard = heard.unwrap().unwrap();
            if heard == event {
                break;
            }
            // Each node tells it.
            assert_eq!(heard, Event::Asked(claim.id));
        }
    }
}

async fn many_renewals_go_out_together(cluster: &RedisCluster) {
    let store = open(&cluster.url()).await;
    let mut held = Vec::new();
    for i in 0..300 {
        let claim = store.claim(&format!("many/{i}"));
        let token = store.held(&claim).await.tokens.first;
        held.push(HeldClaim { claim, token });
    }
    let last = held.len() - 1;
    store.release(&held[last].claim).await;
    for node in cluster.nodes() {
        node.command::<()>(&["SCRIPT", "FLUSH"]).unwrap();
    }
    for _ in 0..2 {
        let renewed = store.engine.renew(&held).await;
        for (at, renewal) in renewed.iter().enumerate() {
            match renewal {
                Renewal::Kept { .. } => assert_ne!(at, last),
                Renewal::Lost => assert_eq!(at, last),
                Renewal::Unknown(error) => panic!("{error}"),
            }
        }
    }
    for held in &held {
        store.release(&held.claim).await;
    }
}

async fn a_moved_lock_is_still_held(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    // The slot of `foo`.
    let slot = 12_182;
    let (from, to) = (cluster.owner(0, slot).unwrap(), 0);
    let claim = one.claim("foo");
    let token = one.held(&claim).await.tokens.first;
    let kept = async |when: &str| {
        let renewed = one.renew(&claim, token).await;
        assert!(
            matches!(renewed, Renewal::Kept { .. }),
            "{when}: {renewed:?}"
        );
    };
    cluster.begin_move(slot, from, to).unwrap();
    kept("before its keys move").await;
    let impatient = fencelock_core::engine::Claim {
        wait: false,
        ..two.claim("foo")
    };
    // Scripts of several keys wait for the end of the move.
    let error = two.engine.place(&impatient).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    cluster.move_keys(slot, from, to).unwrap();
    kept("on the way").await;
    assert!(two.engine.place(&impatient).await.is_err());
    cluster.end_move(slot, from, to).unwrap();
    kept("at the target").await;
    let waiter = two.claim("foo");
    let place = two.waits(&waiter).await;
    assert_eq!(one.release(&claim).await, Withdrawn::Released);
    let next = two.granted(&waiter, &place).await.tokens.first;
    assert!(next > token);
    two.release(&waiter).await;
}

/// The least rights, as the documentation of the crate lists them.
const LEAST: &str = "resetchannels -@all ~a ~{*}:fencelock:* ~fencelock:* &fencelock:* +hello +client|id \
                     +client|kill +info +config|get +cluster|info +cluster|slots +asking +subscribe +publish +ssubscribe \
                     +sunsubscribe +spublish +eval +evalsha +time +get +getrange +set +del +exists +incrby +pttl +pexpire \
                     +pexpireat +zadd +zrem +zpopmin +zrange +zrangebyscore +zscore +zcard +zrank +hset +hget +hdel +hmget \
                     +hgetall +scan";

async fn a_user_with_the_least_rights(cluster: &RedisCluster) {
    let user = |rights: &str| {
        for node in cluster.nodes() {
            let mut words = vec!["ACL", "SETUSER", "least", "reset", "on", ">secret"];
            words.extend(rights.split_whitespace());
            node.command::<()>(&words).unwrap();
        }
    };
    user(LEAST);
    let url = cluster.url().replace(":testbed@", "least:secret@");
    let store = open(&url).await;
    for claim in [store.claim("a"), store.shared("a"), store.permit("a", 2)] {
        store.held(&claim).await;
        let writer = store.claim("a");
        let place = store.waits(&writer).await;
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
        store.granted(&writer, &place).await;
        store.release(&writer).await;
    }
    for node in cluster.nodes() {
        let log: Vec<redis::Value> = node.command(&["ACL", "LOG"]).unwrap();
        assert!(log.is_empty(), "{log:?}");
    }
    // Who may not tell or hear of grants is told so before it may have to wait.
    for right in ["+spublish", "+ssubscribe"] {
        user(&LEAST.replace(right, ""));
        let store = open(&url).await;
        let error = store.engine.place(&store.claim("a")).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
}

async fn refused(url: &str) -> Error {
    match Redis::connect(StoreUrl::parse(url).unwrap()).await {
        Ok(_) => panic!("{url} lets us in"),
        Err(error) => error,
    }
}

async fn wrong_addresses(cluster: &RedisCluster) {
    let single = server();
    let error = refused(&format!("redis+cluster://127.0.0.1:{}", single.port())).await;
    assert!(matches!(error, Error::Config { .. }), "{error}");
    let error = refused(&cluster.url_with("wr0ng")).await;
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("wr0ng"));
    let error = refused(&format!(
        "redis+sentinel://127.0.0.1:{}/main",
        single.port()
    ))
    .await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

/// With TLS and certificates, both ways in.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_cluster_with_tls() {
    let node = Server::builder()
        .tls()
        .config("cluster-enabled", "yes")
        .config("tls-cluster", "yes")
        .start()
        .unwrap();
    node.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    let tls = node.tls_port().unwrap();
    let url = format!("rediss+cluster://localhost:{tls}?tls-ca={}", node.ca());
    let begin = Instant::now();
    let store = loop {
        let info: String = node.command(&["CLUSTER", "INFO"]).unwrap();
        if info.contains("cluster_state:ok") {
            break open(&url).await;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{info}");
        tokio::time::sleep(ms(10)).await;
    };
    let (first, second) = (store.claim("a"), store.claim("a"));
    store.held(&first).await;
    let place = store.waits(&second).await;
    store.release(&first).await;
    store.granted(&second, &place).await;
}
