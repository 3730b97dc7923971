//! A shard that does not answer, on real servers that are stopped: only its own names are affected.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use fencelock_composite::{OpenStore, Opening, Routed, Shard, Shards};
use fencelock_core::engine::StoreOptions;
use fencelock_core::{Client, Engine, Error, Guard, Result, StoreUrl};
use fencelock_redis::Options;
use fencelock_testbed::Redis;

use crate::moving::NoRecord;
use crate::{name_on, until};

const IDS: [&str; 3] = ["a", "b", "c"];

/// A store that is opened when it is first needed.
#[derive(Debug)]
struct ByUrl(String);

#[async_trait]
impl OpenStore for ByUrl {
    async fn open(&self) -> Result<Arc<dyn Engine>> {
        Options::from(StoreUrl::parse(&self.0)?).open().await
    }
}

impl fmt::Display for ByUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Servers(Vec<Redis>);

impl Servers {
    /// Servers with the records of a set.
    async fn made() -> Self {
        let servers = IDS.iter().map(|_| Redis::builder().start().unwrap());
        let servers = Self(servers.collect());
        servers.set().init().await.unwrap();
        servers
    }

    /// A call without an answer takes three seconds, and a failed attempt to open a store two seconds.
    fn set(&self) -> Shards {
        self.set_with("response-timeout=3s&connect-timeout=2s")
    }

    fn set_with(&self, options: &str) -> Shards {
        let shards = self.0.iter().zip(IDS).map(|(server, id)| {
            let url = format!("{}?{options}", server.url());
            Shard::new(id, Arc::new(ByUrl(url)))
        });
        Routed::shards(shards).set("orders")
    }
}

fn names_shard(error: &Error, id: &str) -> bool {
    error.is_away() && error.to_string().contains(&format!("shards:orders[{id}] "))
}

/// Waits for this number of renewals, and checks that the hold is valid all the time.
async fn renewed(guard: &Guard, times: u32) {
    let (mut left, mut seen) = (guard.remaining(), 0);
    until("it is renewed", async || {
        assert!(guard.is_valid(), "{} was lost", guard.name());
        let now = guard.remaining();
        seen += u32::from(now > left);
        left = now;
        seen == times
    })
    .await;
}

/// The engines are the program's own, so the set cannot open them anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_store_that_was_away_at_first_serves_later() {
    let servers = Servers::made().await;
    let cut = Arc::new(AtomicBool::new(true));
    let mut shards = Vec::new();
    for (server, id) in servers.0.iter().zip(IDS) {
        let url = format!("{}?response-timeout=5s", server.url());
        let engine = ByUrl(url).open().await.unwrap();
        let cut = match id {
            "c" => Arc::clone(&cut),
            _ => Arc::default(),
        };
        shards.push((id, Arc::new(NoRecord { engine, cut }) as Arc<dyn Engine>));
    }
    let set = Routed::shards(shards).set("orders").breaker(false);
    let set = Arc::new(set.open().await.unwrap());
    let client = Client::new(set.clone()).unwrap();
    let name = name_on(&set, "c");
    let error = client.try_lock(&name).await.unwrap_err();
    assert!(names_shard(&error, "c"), "{error}");
    cut.store(false, SeqCst);
    client
        .try_lock(&name)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_shard_delays_no_other() {
    let servers = Servers::made().await;
    let set = Arc::new(servers.set().open().await.unwrap());
    let client = Client::new(set.clone()).unwrap();
    let ttl = Duration::from_millis(2600);
    let mut guards = Vec::new();
    for id in IDS {
        let guard = client.lock(&name_on(&set, id)).ttl(ttl).await;
        guards.push(guard.unwrap());
    }
    servers.0[2].pause().unwrap();
    // Renewals at c get no answer for longer than a ttl.
    guards[2].lost().await;
    tokio::join!(renewed(&guards[0], 3), renewed(&guards[1], 3));
    // Its names sort last, so that the others are taken first.
    let free = IDS.map(|id| {
        format!(
            "{}{{{}}}",
            if id == "c" { "z" } else { "m" },
            name_on(&set, id)
        )
    });
    let error = client.try_lock_all(&free).await.unwrap_err();
    assert!(names_shard(&error, "c"), "{error}");
    let (one, two) = (client.look(&free[0]), client.look(&free[1]));
    assert!(one.await.is_ok() && two.await.is_ok());
    for name in &free[..2] {
        until("what was taken is released", async || {
            client.look(name).await.unwrap().holders.is_empty()
        })
        .await;
    }
    let error = client.list("").await.unwrap_err();
    assert!(names_shard(&error, "c"), "{error}");
    assert!(guards[0].is_valid() && guards[1].is_valid());
    servers.0[2].resume().unwrap();
    client
        .lock_all(&free)
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for guard in guards {
        drop(guard);
    }
    client.close().await.unwrap();
}

#[tokio::test]
async fn a_set_opens_while_a_shard_is_away() {
    let servers = Servers::made().await;
    servers.0[0].pause().unwrap();
    let patient = servers.set_with("response-timeout=20s&connect-timeout=20s");
    let lazy = patient.opening(Opening::AsNeeded).open();
    let lazy = tokio::time::timeout(Duration::from_secs(8), lazy).await;
    assert_eq!(lazy.unwrap().unwrap().opened(), ["b"]);
    let set = Arc::new(servers.set().open().await.unwrap());
    assert_eq!(set.opened(), ["b", "c"]);
    assert!(
        set.promises().limits[0]
            .what
            .starts_with("[a] it did not answer")
    );
    let client = Client::new(set.clone()).unwrap();
    let (here, away) = (name_on(&set, "b"), name_on(&set, "a"));
    client.lock(&here).await.unwrap().release().await.unwrap();
    // Many claims share one attempt to open the store.
    let claims = (0..8).map(|number| {
        let client = client.clone();
        let name = format!("{number}/{{{away}}}");
        tokio::spawn(async move { client.try_lock(&name).await })
    });
    let begun = std::time::Instant::now();
    for claim in claims.collect::<Vec<_>>() {
        let error = claim.await.unwrap().unwrap_err();
        assert!(names_shard(&error, "a"), "{error}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    let found = client.diagnose().await.unwrap();
    assert!(
        found
            .iter()
            .any(|found| found.what.starts_with("[a] its locks cannot be taken"))
    );
    servers.0[0].resume().unwrap();
    client.lock(&away).await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
    for server in &servers.0 {
        server.pause().unwrap();
    }
    let error = servers.set().open().await.unwrap_err();
    assert!(error.is_away(), "{error}");
    for server in &servers.0 {
        server.resume().unwrap();
    }
}
