//! Credentials, rights and TLS of each node, and nodes that refuse.

use fencelock_core::engine::{Evict, Leave, Place, Standing, Withdrawn};
use fencelock_core::{Clock, Engine, Error};
use fencelock_testbed::{Flow, Proxy, Redis, Redlock as Group};

use super::nodes::{Nodes, age, open, url};
use crate::support::{ms, until};

#[tokio::test]
async fn each_node_may_have_credentials_of_its_own() {
    let passwords = ["a,b", "p@ss", "c", "", "e:f"];
    let servers: Vec<Redis> = passwords
        .iter()
        .enumerate()
        .map(|(i, password)| {
            let builder = match password.is_empty() {
                true => Redis::builder(),
                false => Redis::builder().password(password),
            };
            let builder = match i {
                2 => builder.user("locker", "secret", "~* &* +@all"),
                _ => builder,
            };
            builder.start().unwrap()
        })
        .collect();
    let port = |i: usize| servers[i].port();
    let url = format!(
        "redlock://:a%2Cb@127.0.0.1:{},:p%40ss@127.0.0.1:{},locker:secret@127.0.0.1:{},127.0.0.1:{},:e%3Af@127.0.0.1:{}",
        port(0),
        port(1),
        port(2),
        port(3),
        port(4)
    );
    for server in &servers {
        age(server);
    }
    let store = open(&url).await.unwrap();
    let (claim, _) = store.take("a").await;
    until("all five have it", || {
        servers
            .iter()
            .all(|server| server.command::<u64>(&["EXISTS", "a"]).unwrap() == 1)
    })
    .await;
    store.release(&claim).await;
    // Two nodes that refuse count as down. Three are an error.
    let wrong = url
        .replace(":e%3Af@", ":wrong-secret@")
        .replace(":a%2Cb@", "");
    let store = open(&wrong).await.unwrap();
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
    let wrong = wrong.replace("locker:secret", "locker:wrong-secret");
    let error = open(&wrong).await.map(|_| ()).unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains(&port(4).to_string()), "{text}");
    assert!(
        !text.contains("wrong-secret") && !text.contains("p%40ss"),
        "{text}"
    );
    assert!(matches!(error, Error::Refused { .. }), "{text}");
}

#[tokio::test]
async fn a_server_named_twice_is_refused() {
    let nodes = Nodes::start();
    let mut ports: Vec<u16> = nodes.servers.iter().map(Redis::port).collect();
    // The same server, through a proxy.
    ports[4] = nodes.proxies[0].port();
    let error = open(&url(ports, "")).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    assert!(error.to_string().contains("the same server"), "{error}");
}

/// One node refuses, which is a final error. The others are slow, which is not final.
#[tokio::test]
async fn slow_nodes_are_not_final_when_too_few_refuse() {
    let nodes = Nodes::start();
    nodes.servers[0]
        .command::<()>(&["CONFIG", "SET", "requirepass", "secret"])
        .unwrap();
    let wrong = url(nodes.proxies[..3].iter().map(Proxy::port), "");
    let store = open(&wrong).await.unwrap();
    let (claim, _) = store.take("a").await;
    store.release(&claim).await;
    for proxy in &nodes.proxies[1..3] {
        proxy.answers(Flow::Delay(ms(450)));
    }
    let error = store.engine.place(&store.claim("a")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

/// After a final error the claim no longer waits.
#[tokio::test]
async fn a_final_error_leaves_no_waiter() {
    let nodes = Nodes::start();
    let store = nodes.open().await;
    for server in &nodes.servers {
        server.command::<()>(&["HSET", "hash", "a", "b"]).unwrap();
    }
    let claim = store.claim("hash").wait(true).record(true);
    let error = store.engine.place(&claim).await.unwrap_err();
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    let now = Clock::Boot.now();
    let place = Place::new(now);
    // The wait ends at the recheck.
    let changed = tokio::time::timeout(ms(2000), store.engine.wait(&claim, &place)).await;
    assert!(matches!(changed, Ok(Ok(None))), "{changed:?}");
}

/// The rights that the documentation lists.
const LEAST: &str = "resetchannels &fencelock:* ~* -@all +hello +select +info +subscribe +publish +eval +evalsha +script|load \
                     +time +get +getrange +set +del +exists +pttl +pexpire +zadd +zrem +zpopmin +zrange +hget +hset +hdel \
                     +hmget +hincrby +scan";

#[tokio::test]
async fn the_documented_rights_suffice() {
    let servers = Group::start_each(5, |_| Redis::builder().user("least", "secret", LEAST));
    let servers = servers.unwrap();
    let hosts = servers.nodes().iter().map(Redis::port);
    let url = url(hosts, "").replace("redlock://", "redlock://least:secret@");
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    for record in [false, true] {
        let claim = one
            .claim("a")
            .record(record)
            .lock_delay(ms(1))
            .ttl(ms(3900));
        let Ok(Standing::Held(grant)) = one.engine.place(&claim).await else {
            panic!("it is free");
        };
        let waiter = two.claim("a").wait(true);
        assert!(matches!(
            two.engine.place(&waiter).await,
            Ok(Standing::Waiting(_))
        ));
        one.kept(&claim, grant.tokens.first).await;
        let name = claim.name.clone();
        let token = grant.tokens.first;
        assert!(two.evict(&name, token, Evict::Ask).await);
        assert_eq!(
            two.engine
                .inspect()
                .list("", None, 100)
                .await
                .unwrap()
                .items
                .len(),
            1
        );
        assert_eq!(one.release(&claim).await, Withdrawn::Released);
        two.engine.withdraw(&waiter, Leave::Release).await.unwrap();
    }
    for server in servers.nodes() {
        let log: Vec<redis::Value> = server.command(&["ACL", "LOG"]).unwrap();
        assert!(log.is_empty(), "{log:?}");
    }
    // A user without one of these rights is refused at once.
    for right in ["+subscribe", "+publish", "+info"] {
        for server in servers.nodes() {
            let mut words = vec!["ACL", "SETUSER", "least", "reset", "on", ">secret"];
            let less = LEAST.replace(right, "");
            words.extend(less.split_whitespace());
            server.command::<()>(&words).unwrap();
        }
        let error = open(&url).await.map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Refused { .. }), "{text}");
        assert!(text.contains(&right[1..]), "{right}: {text}");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_to_every_node() {
    let servers = Group::start_each(3, |_| Redis::builder().tls()).unwrap();
    // Each node has its own authority. One file may contain several authorities.
    let bundle = servers.nodes()[0].dir().join("all.crt");
    let all = servers.nodes().iter().map(Redis::ca);
    let all: Vec<String> = all.map(|ca| std::fs::read_to_string(ca).unwrap()).collect();
    std::fs::write(&bundle, all.concat()).unwrap();
    let hosts = servers.nodes().iter();
    let hosts = hosts.map(|node| format!("localhost:{}", node.tls_port().unwrap()));
    let url = format!(
        "redlocks://{}?node-timeout=200ms&max-ttl=2s",
        hosts.collect::<Vec<_>>().join(",")
    );
    let trusting = format!("{url}&tls-ca={}", bundle.display());
    let store = open(&trusting).await.unwrap();
    let (claim, _) = store.take("a").await;
    assert_eq!(store.release(&claim).await, Withdrawn::Released);
    let error = open(&url).await.map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
}
