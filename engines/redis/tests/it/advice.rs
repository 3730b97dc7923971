//! Promises and advice about a store must also be true after the next start of the server.

use fencelock_core::engine::Standing;
use fencelock_core::{ConfigPart, Durability, Engine, Error};
use fencelock_testbed::{Etcd, MariaDb, Redis as Server};

use crate::support::{Store, open, refused, server, wrong_in};

fn run(server: &Server, commands: &[&[&str]]) {
    for command in commands {
        let _: String = server.command(command).unwrap();
    }
}

const APPEND: &[&str] = &["CONFIG", "SET", "appendonly", "yes"];
const ALWAYS: &[&str] = &["CONFIG", "SET", "appendfsync", "always"];
const REWRITE: &[&str] = &["CONFIG", "REWRITE"];

/// The durability and the limits in the promises. A diagnosis must not repeat them.
async fn judged(server: &Server) -> (Durability, Vec<String>) {
    let store = open(&server.url()).await;
    let promises = store.engine.promises();
    let limits: Vec<String> = promises
        .limits
        .iter()
        .map(|limit| format!("{} -> {}", limit.what, limit.change))
        .collect();
    let findings = store.engine.inspect().diagnose().await.unwrap();
    for finding in &findings {
        assert!(
            !promises.limits.contains(finding),
            "said twice: {finding:?}"
        );
    }
    (promises.durability, limits)
}

/// Whether a lock is granted twice: before a crash of the server, and after a start with the same command line.
async fn granted_twice(server: &mut Server) -> bool {
    let store = open(&server.url()).await;
    store.held(&store.claim("a")).await;
    server.restart().unwrap();
    let other = open(&server.url()).await;
    let claim = other.claim("a").wait(false);
    matches!(other.engine.place(&claim).await, Ok(Standing::Held(_)))
}

#[tokio::test]
async fn a_setting_of_config_set_alone_does_not_count() {
    let mut server = server();
    let (durability, limits) = judged(&server).await;
    assert_eq!(durability, Durability::Volatile);
    assert!(limits[0].contains("CONFIG REWRITE"), "{limits:?}");
    run(&server, &[APPEND, ALWAYS]);
    let (durability, limits) = judged(&server).await;
    assert_eq!(durability, Durability::Volatile, "{limits:?}");
    assert!(limits[0].contains("CONFIG SET alone"), "{limits:?}");
    assert!(limits[0].contains("CONFIG REWRITE"), "{limits:?}");
    assert!(granted_twice(&mut server).await, "it survived");
}

#[tokio::test]
async fn advised_settings_survive_a_crash() {
    let mut server = server();
    run(&server, &[APPEND, ALWAYS, REWRITE]);
    let (durability, limits) = judged(&server).await;
    assert_eq!(durability, Durability::Durable);
    assert!(limits.is_empty(), "{limits:?}");
    assert!(!granted_twice(&mut server).await);
    let (durability, _) = judged(&server).await;
    assert_eq!(durability, Durability::Durable);
}

/// The append-only file was on from the start. Its flushing was set later.
#[tokio::test]
async fn one_of_two_settings_may_survive() {
    let server = Server::builder().append_only("everysec").start().unwrap();
    assert_eq!(judged(&server).await.0, Durability::Process);
    run(&server, &[ALWAYS]);
    let (durability, limits) = judged(&server).await;
    assert_eq!(durability, Durability::Process);
    assert!(limits[0].contains("CONFIG SET alone"), "{limits:?}");
    run(&server, &[REWRITE]);
    assert_eq!(judged(&server).await.0, Durability::Durable);
}

#[tokio::test]
async fn an_eviction_policy_of_config_set_does_not_count() {
    let server = Server::builder()
        .append_only("always")
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let (_, limits) = judged(&server).await;
    assert!(limits.iter().any(|limit| limit.contains("CONFIG REWRITE")));
    run(
        &server,
        &[&["CONFIG", "SET", "maxmemory-policy", "noeviction"]],
    );
    let (_, limits) = judged(&server).await;
    let told = |limit: &String| limit.contains("the server may evict keys");
    assert!(limits.iter().any(told), "{limits:?}");
    run(&server, &[REWRITE]);
    let (_, limits) = judged(&server).await;
    assert!(limits.is_empty(), "{limits:?}");
}

#[tokio::test]
async fn a_missing_database_is_an_error_of_the_url() {
    let server = server();
    let error = refused(&format!("{}/99", server.url())).await;
    wrong_in(&error, ConfigPart::Server);
    assert!(error.to_string().contains("databases"), "{error}");
    let url = format!("{}/15", server.url());
    let store: Store = open(&url).await;
    store.held(&store.claim("a")).await;
}

#[tokio::test]
async fn the_port_of_another_server_is_an_error_of_the_url() {
    let (etcd, mariadb) = (Etcd::start().unwrap(), MariaDb::start().unwrap());
    let error = refused(&format!("redis://127.0.0.1:{}", mariadb.port())).await;
    wrong_in(&error, ConfigPart::Server);
    assert!(error.to_string().contains("no Redis server"), "{error}");
    // The server sends nothing, like a Redis that goes down.
    let error = refused(&format!("redis://127.0.0.1:{}", etcd.port(0))).await;
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("is it a Redis server"),
        "{error}"
    );
}
