//! Opening a store: users and their rights, sockets, TLS, servers that do not answer.

use std::time::{Duration, Instant};

use fencelock_core::engine::{Evict, Withdrawn};
use fencelock_core::{ConfigPart, Durability, Engine, Error};
use fencelock_redis::Redis;
use fencelock_testbed::Redis as Server;

use crate::support::{ms, open, open_with, refused, server, wrong_in};

/// The rights that the documentation of the crate lists.
const LEAST: &str = "resetchannels -@all ~a ~{*}:fencelock:* ~fencelock:* &fencelock:* +hello +client|id +client|kill +info +config|get +subscribe +publish \
                     +eval +evalsha +time +get +getrange +set +del +exists +incrby +pttl +pexpire +pexpireat +zadd +zrem +zpopmin +zrange \
                     +zrangebyscore +zscore +zcard +zrank +hset +hget +hdel +hmget +hgetall +scan";

#[tokio::test]
async fn the_documented_rights_suffice() {
    let server = Server::builder()
        .user("least", "secret", LEAST)
        .start()
        .unwrap();
    let url = format!("redis://least:secret@127.0.0.1:{}", server.port());
    let store = open(&url).await;
    for claim in [
        store.plain("a"),
        store.claim("a"),
        store.shared("a"),
        store.permit("a", 2),
    ] {
        let token = store.held(&claim).await.tokens.first;
        let writer = store.claim("a");
        let place = store.waits(&writer).await;
        store.kept(&claim, token).await;
        assert_eq!(
            store
                .engine
                .inspect()
                .list("", None, 10)
                .await
                .unwrap()
                .items
                .len(),
            1
        );
        assert_eq!(store.release(&claim).await, Withdrawn::Released);
        let token = store.granted(&writer, &place).await.tokens.first;
        let evict = Evict::Release;
        assert!(store.evict(&writer.name, token, evict).await);
    }
    let log: Vec<redis::Value> = server.command(&["ACL", "LOG"]).unwrap();
    assert!(log.is_empty(), "{log:?}");
}

#[tokio::test]
async fn a_user_without_channels_is_refused_with_the_rule_to_add() {
    for rights in ["~* +@all", "~* +@all -publish &*", "~* +@all -subscribe &*"] {
        let server = Server::builder()
            .user("mute", "secret", &format!("resetchannels {rights}"))
            .start()
            .unwrap();
        let url = format!("redis://mute:secret@127.0.0.1:{}", server.port());
        let error = refused(&url).await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("&fencelock:*"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_user_without_keys_or_scripts_is_refused() {
    for rights in ["~none &* +@all", "~* &* +@all -eval"] {
        let server = Server::builder()
            .user("poor", "secret", rights)
            .start()
            .unwrap();
        let url = format!("redis://poor:secret@127.0.0.1:{}", server.port());
        let error = refused(&url).await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = Server::builder().password("right").start().unwrap();
    let port = server.port();
    for url in [
        format!("redis://:wr0ng@127.0.0.1:{port}"),
        format!("redis://nobody:wr0ng@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let error = refused(&url).await;
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("wr0ng"), "{shown}");
    }
    let store = open(&server.url()).await;
    let shown = format!("{} {:?}", store.engine, store.engine);
    assert!(
        shown.contains(&port.to_string()) && !shown.contains("right"),
        "{shown}"
    );
}

#[tokio::test]
async fn an_absent_or_silent_server_is_reported_within_the_timeout() {
    let free = fencelock_testbed::Port::free().unwrap();
    let begin = Instant::now();
    let error = refused(&format!("redis://127.0.0.1:{}", free.number())).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let server = server();
    server.pause().unwrap();
    let url = format!("{}?connect-timeout=300ms", server.url());
    let error = refused(&url).await;
    server.resume().unwrap();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn a_unix_socket_and_an_existing_client_work() {
    let server = Server::builder().unix_socket().start().unwrap();
    let store = open(&format!("redis+unix://{}", server.socket())).await;
    let (first, second) = (store.claim("a"), store.claim("a"));
    store.held(&first).await;
    let place = store.waits(&second).await;
    store.release(&first).await;
    store.granted(&second, &place).await;
    let client = redis::Client::open(server.url()).unwrap();
    let engine = Redis::connect(fencelock_redis::Options::from_client(client));
    let engine = engine.await.unwrap();
    let view = engine.inspect().look(&first.name).await.unwrap();
    assert_eq!(view.holders.len(), 1);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_works_and_checks_the_certificate() {
    let server = Server::builder().tls().start().unwrap();
    let port = server.tls_port().unwrap();
    let store = open(&format!("rediss://localhost:{port}?tls-ca={}", server.ca())).await;
    let (first, second) = (store.claim("a"), store.claim("a"));
    store.held(&first).await;
    let place = store.waits(&second).await;
    store.release(&first).await;
    store.granted(&second, &place).await;
    let error = refused(&format!("rediss://localhost:{port}")).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = refused(&format!("rediss://localhost:{port}?tls-ca=/nonexistent")).await;
    wrong_in(&error, ConfigPart::File);
}

#[cfg(not(feature = "tls"))]
#[tokio::test]
async fn without_the_tls_feature_the_error_names_it() {
    let error = refused("rediss://localhost").await;
    assert!(error.to_string().contains("feature"), "{error}");
}

#[tokio::test]
async fn promises_name_what_the_server_may_lose() {
    let volatile = server();
    let store = open(&volatile.url()).await;
    let promises = store.engine.promises();
    assert_eq!(promises.durability, Durability::Volatile);
    assert_eq!(promises.limits.len(), 1, "{promises:?}");
    let change = &promises.limits[0].change;
    assert!(
        change.contains("appendonly") && change.contains("restart-delay"),
        "{change}"
    );
    let store = open_with(&volatile, "restart-delay=1s").await;
    assert!(store.engine.promises().limits.is_empty());

    let durable = Server::builder().append_only("always").start().unwrap();
    let store = open(&durable.url()).await;
    let promises = store.engine.promises();
    assert_eq!(promises.durability, Durability::Durable);
    assert!(promises.limits.is_empty(), "{promises:?}");

    let evicting = Server::builder()
        .append_only("everysec")
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let store = open(&evicting.url()).await;
    let promises = store.engine.promises();
    assert_eq!(promises.durability, Durability::Process);
    let whats: Vec<&str> = promises
        .limits
        .iter()
        .map(|limit| limit.what.as_str())
        .collect();
    assert_eq!(whats.len(), 2, "{whats:?}");
    assert!(
        whats.iter().any(|what| what.contains("allkeys-lru")),
        "{whats:?}"
    );
}

#[tokio::test]
async fn a_cluster_node_is_refused() {
    let server = Server::builder().cluster().start().unwrap();
    let error = refused(&server.url()).await;
    wrong_in(&error, ConfigPart::Server);
    assert!(error.to_string().contains("Cluster"), "{error}");
}

#[tokio::test]
async fn after_a_restart_nothing_is_granted_until_the_delay_is_over() {
    let mut server = server();
    let store = open_with(&server, "restart-delay=1s").await;
    let clock = store.engine.clock();
    let claim = store.plain("a");
    store.lock(&claim).await;
    let before = clock.now();
    server.restart_empty().unwrap();
    let impatient = store.plain("a").wait(false);
    // The first answer of the new server is a refusal.
    let error = store.engine.place(&impatient).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let next = store.plain("a");
    store.lock(&next).await;
    assert!(clock.now().since(before) >= ms(1000));
}

/// A link leads to the server's socket, so that another server can take its place.
#[tokio::test]
async fn a_server_that_replaces_another_grants_nothing_until_the_delay_is_over() {
    let start = || Server::builder().unix_socket().start().unwrap();
    let (first, second) = (start(), start());
    let link = std::path::Path::new(first.dir()).join("link");
    let point_to = |server: &Server| {
        let new = link.with_extension("new");
        std::os::unix::fs::symlink(server.socket(), &new).unwrap();
        std::fs::rename(&new, &link).unwrap();
    };
    let begin = Instant::now();
    let uptime = || {
        let info: String = second.command(&["INFO", "server"]).unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        line.map_or(0, |seconds| seconds.parse::<u64>().unwrap())
    };
    // Longer than the delay, so that its uptime alone allows grants.
    while uptime() < 4 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(ms(20)).await;
    }
    point_to(&first);
    let url = format!("redis+unix://{}?restart-delay=2s", link.display());
    let store = open(&url).await;
    let claim = store.plain("a");
    store.lock(&claim).await;
    point_to(&second);
    let before = store.engine.clock().now();
    let kill = |server: &Server| {
        let killed = server.command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        assert_eq!(killed.unwrap(), 1);
    };
    let reconnected = async |by: &str| {
        let begin = Instant::now();
        loop {
            let list: String = second
                .command(&["CLIENT", "LIST", "TYPE", "pubsub"])
                .unwrap();
            let id = list.split_whitespace().next().unwrap_or_default();
            if !id.is_empty() && id != by {
                return id.to_owned();
            }
            assert!(begin.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(ms(2)).await;
        }
    };
    kill(&first);
    let by = reconnected("").await;
    kill(&second);
    reconnected(&by).await;
    let grant = store.lock(&store.plain("b")).await;
    let waited = grant.counted_from.since(before);
    assert!(waited >= ms(2000), "{waited:?}");
}
