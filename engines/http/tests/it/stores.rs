//! All replicas must serve the same store.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock::engine::{Engine, Grant, HolderView};
use fencelock::{Client, Error, LockName, Memory};
use fencelock_composite::Routed;
use fencelock_core::layers::Layer;
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

/// Two sets of stores may have the same name.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_of_two_sets_with_one_name_are_refused() {
    let dir = Dir::new("http-stores").unwrap();
    let mut replicas = Vec::new();
    for number in [1, 2] {
        let name = format!("{number}.db?outside-set=yes");
        let set = async || Routed::shards([("a", file(&dir, &name).await)]).set("orders");
        set().await.init().await.unwrap();
        let engine = set().await.open().await.unwrap();
        replicas.push(Replica::start(Arc::new(engine)).await);
    }
    let refused = soon("a refusal", fencelock::connect(url(&replicas))).await;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("two stores") && text.contains("2.db"),
        "{text}"
    );
}

/// A store in which only the holder's process knows its token, as a set has that has moved.
#[derive(Debug)]
struct NoToken(Memory);

#[async_trait]
impl Layer for NoToken {
    fn below(&self) -> &dyn Engine {
        &self.0
    }

    async fn attest(
        &self,
        name: &LockName,
        owner: &str,
    ) -> Result<Option<(HolderView, Grant)>, Error> {
        let found = self.0.inspect().attest(name, owner).await?;
        Ok(found.map(|(mut holder, grant)| {
            holder.token = None;
            (holder, grant)
        }))
    }
}

impl fmt::Display for NoToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_token_is_unknown_is_held_and_cannot_be_joined() {
    let replicas = [Replica::start(Arc::new(NoToken(Memory::new()))).await];
    let url = url(&replicas);
    let client = connect(&url).await;
    let owner = client.owner();
    let guard = client.lock("a").owner(&owner).await.unwrap();
    let engine = fencelock::open_engine(&url).await.unwrap();
    let attested = engine.inspect().attest(guard.name(), owner.as_str()).await;
    let (holder, _) = attested.unwrap().unwrap();
    assert_eq!((holder.claim, holder.token), (Some(guard.claim_id()), None));
    let within = Client::new(engine).unwrap();
    let outer = within.join(owner.as_str()).unwrap();
    let refused = soon("a refusal", within.lock("a").owner(&outer).into_future()).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused:?}");
    assert!(refused.to_string().contains("token"), "{refused}");
}
