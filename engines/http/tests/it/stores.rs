//! All replicas must serve the same store.

use std::sync::Arc;

use fencelock::Error;
use fencelock::engine::Engine;
use fencelock_testbed::Dir;

use crate::{Replica, connect, serve, soon, url};

async fn file(dir: &Dir, name: &str) -> Arc<dyn Engine> {
    let url = format!("sqlite:{}", dir.join(name));
    fencelock::open_engine(&url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_two_stores_are_refused() {
    let dir = Dir::new("http-stores").unwrap();
    let replicas = [
        Replica::start(file(&dir, "a.db").await).await,
        Replica::start(file(&dir, "b.db").await).await,
    ];
    let error = soon("a refusal", fencelock::connect(url(&replicas)))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Config { .. }), "{error:?}");
    let text = error.to_string();
    let named = ["a.db", "b.db", "two stores"];
    assert!(named.iter().all(|word| text.contains(word)), "{text}");
    // An operator may confirm that it is the same store.
    connect(&format!("{}?same-store=confirmed", url(&replicas))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_two_prefixes_are_refused() {
    let dir = Dir::new("http-stores").unwrap();
    for (one, other) in [("?prefix=a/", "?prefix=b/"), ("", "?prefix=b/")] {
        let replicas = [
            Replica::start(file(&dir, &format!("a.db{one}")).await).await,
            Replica::start(file(&dir, &format!("a.db{other}")).await).await,
        ];
        let opened = soon("a refusal", fencelock::connect(url(&replicas))).await;
        let text = match opened {
            Err(error @ Error::Config { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(text.contains("two stores") && text.contains("b/"), "{text}");
    }
    let same = [
        Replica::start(file(&dir, "a.db?prefix=a/").await).await,
        Replica::start(file(&dir, "a.db?prefix=a/").await).await,
    ];
    connect(&url(&same)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_comes_back_with_another_store_is_not_used() {
    let dir = Dir::new("http-stores").unwrap();
    let store = file(&dir, "a.db").await;
    let mut replicas = [
        Replica::start(file(&dir, "a.db").await).await,
        Replica::start(file(&dir, "a.db").await).await,
    ];
    let client = connect(&url(&replicas)).await;
    let port = replicas[0].server.as_ref().unwrap().address().port();
    replicas[0].kill();
    replicas[0].server = Some(serve(file(&dir, "b.db").await, port).await);
    for round in 0..20 {
        let name = format!("a/{round}");
        let guard = soon("the lock", client.try_lock(&name)).await.unwrap();
        let view = store.inspect().look(guard.name()).await.unwrap();
        assert_eq!(view.token(), Some(guard.token()), "not in the store");
        guard.release().await.unwrap();
    }
    // A replica that comes back with the right store is used again.
    replicas[0].kill();
    replicas[0].server = Some(serve(file(&dir, "a.db").await, port).await);
    replicas[1].kill();
    let guard = soon("the lock", client.lock("a")).await.unwrap();
    let view = store.inspect().look(guard.name()).await.unwrap();
    assert_eq!(view.token(), Some(guard.token()));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_server_gets_an_error_that_says_so() {
    let other = fencelock_testbed::Redis::start().unwrap();
    let url = format!(
        "fencelock+http://127.0.0.1:{}?connect-timeout=100ms",
        other.port()
    );
    let error = soon("an error", fencelock::connect(&url))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&other.port().to_string()),
        "{error}"
    );
}
