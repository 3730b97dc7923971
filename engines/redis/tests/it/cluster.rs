//! Clusters: slots of keys, messages of grants, and locks whose slot is moved to another node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fencelock_core::engine::{Event, Evict, HeldClaim, Renewal, Withdrawn};
use fencelock_core::{ConfigPart, Engine, Error};
use fencelock_testbed::{Redis as Server, RedisCluster};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{ms, open, refused, server, wrong_in};

/// These tests share one cluster, and use different names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots() {
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    the_keys_of_unusual_names_share_a_slot(&cluster).await;
    grants_are_pushed_to_waiters(&cluster).await;
    events_reach_a_holder(&cluster).await;
    many_renewals_go_out_together(&cluster).await;
    a_moved_lock_is_still_held(&cluster).await;
    a_user_with_the_least_rights(&cluster).await;
    wrong_addresses(&cluster).await;
}

async fn the_keys_of_unusual_names_share_a_slot(cluster: &RedisCluster) {
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

async fn grants_are_pushed_to_waiters(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let mut gaps = Vec::new();
    for i in 0..20 {
        let name = format!("push/{i}");
        let (first, second) = (one.claim(&name), two.claim(&name));
        let token = one.held(&first).await.tokens.first;
        let place = two.waits(&second).await;
        let begin = Instant::now();
        one.release(&first).await;
        let grant = two.granted(&second, &place).await;
        assert!(grant.tokens.first > token);
        gaps.push(begin.elapsed());
        two.release(&second).await;
    }
    // Earlier than a recheck, which comes after at least half a second.
    gaps.sort_unstable();
    assert!(gaps[10] < ms(400), "{gaps:?}");
}

async fn events_reach_a_holder(cluster: &RedisCluster) {
    let (one, two) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let claim = one.claim("event");
    let token = one.held(&claim).await.tokens.first;
    let mut events = one.engine.events().unwrap();
    for (how, event) in [
        (Evict::Ask, Event::Asked(claim.id)),
        (Evict::Release, Event::Lost(claim.id)),
    ] {
        assert!(two.evict(&claim.name, token, how).await);
        loop {
            let heard = tokio::time::timeout(Duration::from_secs(5), events.next()).await;
            let heard = heard.unwrap().unwrap().unwrap();
            if heard == event {
                break;
            }
            // Each node sends the event.
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
        held.push(HeldClaim::new(claim, token));
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
                other => panic!("{other:?}"),
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
    let impatient = two.claim("foo").wait(false);
    // Scripts with several keys wait for the end of the move.
    let error = two.engine.place(&impatient).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    cluster.move_keys(slot, from, to).unwrap();
    kept("during the move").await;
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

/// The rights that the documentation of the crate lists.
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
    // A user who may not publish or subscribe gets an error before the wait.
    for right in ["+spublish", "+ssubscribe"] {
        user(&LEAST.replace(right, ""));
        let store = open(&url).await;
        let error = store.engine.place(&store.claim("a")).await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
}

async fn wrong_addresses(cluster: &RedisCluster) {
    let single = server();
    let error = refused(&format!("redis+cluster://127.0.0.1:{}", single.port())).await;
    wrong_in(&error, ConfigPart::Server);
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

/// The holds at the other nodes are renewed in time, including shared ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_is_lost_at_other_nodes_when_a_node_dies() {
    let cluster = RedisCluster::start(3, 0, 60_000, None).unwrap();
    let store = open(&format!("{}?response-timeout=1s", cluster.url())).await;
    let (mut held, mut until) = (Vec::new(), Vec::new());
    let (mut lost, ttl) = (0, ms(6000));
    for i in 0..300 {
        let name = format!("dead/{i}");
        let claim = if i % 2 == 0 {
            store.claim(&name)
        } else {
            store.shared(&name)
        };
        let claim = claim.ttl(ttl);
        let grant = store.held(&claim).await;
        until.push(grant.counted_from + ttl);
        let token = grant.tokens.first;
        held.push(HeldClaim::new(claim, token));
    }
    let clock = store.engine.clock();
    let stopped = &cluster.nodes()[1];
    let all: Vec<String> = stopped.command(&["KEYS", "dead/*"]).unwrap();
    let on_dead = |held: &HeldClaim| all.iter().any(|name| *name == held.claim.name.as_str());
    let on_dead: Vec<bool> = held.iter().map(on_dead).collect();
    assert!(all.len() > 50 && all.len() < 250, "{}", all.len());
    stopped.pause().unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(8) {
        let asked = Instant::now();
        let renewed = store.engine.renew(&held).await;
        // Half of the ttl.
        assert!(asked.elapsed() < ms(3000), "{:?}", asked.elapsed());
        for (at, renewal) in renewed.iter().enumerate() {
            match renewal {
                Renewal::Kept { counted_from, .. } => {
                    assert!(!on_dead[at]);
                    assert!(clock.now() < until[at], "it had ended before");
                    until[at] = *counted_from + ttl;
                }
                Renewal::Unknown(_) if on_dead[at] => lost += 1,
                other => panic!("{other:?}"),
            }
        }
        // Try again a little later, like the core.
        tokio::time::sleep(ms(300)).await;
    }
    assert!(lost > 0);
}

/// Forwards connections to a server. Once `muted`, it forwards nothing more of the second connection.
async fn pass_on(listener: TcpListener, server: u16, muted: Arc<AtomicBool>) {
    let mut count = 0;
    while let Ok((mut near, _)) = listener.accept().await {
        count += 1;
        let muted = (count == 2).then(|| Arc::clone(&muted));
        tokio::spawn(async move {
            let mut far = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
            let (mut asked, mut answered) = (vec![0; 4096], vec![0; 4096]);
            loop {
                let passes = |muted: &Option<Arc<AtomicBool>>| {
                    !muted.as_ref().is_some_and(|it| it.load(Ordering::SeqCst))
                };
                tokio::select! {
                    Ok(count) = near.read(&mut asked) => match count {
                        0 => return,
                        _ if passes(&muted) => far.write_all(&asked[..count]).await.unwrap(),
                        _ => {}
                    },
                    Ok(count) = far.read(&mut answered) => match count {
                        0 => return,
                        _ if passes(&muted) => near.write_all(&answered[..count]).await.unwrap(),
                        _ => {}
                    },
                    else => return,
                }
            }
        });
    }
}

/// The first connection still gets its answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_channel_connection_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = listener.local_addr().unwrap().port().to_string();
    let node = Server::builder()
        .cluster()
        .config("cluster-announce-port", &way)
        .start()
        .unwrap();
    node.command::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    let muted = Arc::new(AtomicBool::new(false));
    tokio::spawn(pass_on(listener, node.port(), Arc::clone(&muted)));
    let begin = Instant::now();
    loop {
        let info: String = node.command(&["CLUSTER", "INFO"]).unwrap();
        if info.contains("cluster_state:ok") {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{info}");
        tokio::time::sleep(ms(10)).await;
    }
    let port = node.port();
    let store = open(&format!(
        "redis+cluster://127.0.0.1:{port}?response-timeout=1s"
    ))
    .await;
    let (first, second) = (store.claim("a"), store.claim("b"));
    store.held(&first).await;
    let token = store.held(&second).await.tokens.first;
    store.waits(&store.claim("a")).await;
    muted.store(true, Ordering::SeqCst);
    // The channel of another slot.
    let waiter = store.claim("c");
    let begin = Instant::now();
    let mut failed = 0;
    while let Err(error) = store.engine.place(&waiter).await {
        failed += 1;
        assert!(error.is_retryable(), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5), "{error}");
        let renewed = store.renew(&second, token).await;
        assert!(
            matches!(renewed, Renewal::Kept { .. }) || failed > 1,
            "{renewed:?}"
        );
    }
    assert!(failed > 0);
}

/// With TLS and certificates, both by the URL and by redirections.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_cluster_with_tls() {
    let node = Server::builder()
        .tls()
        .cluster()
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
