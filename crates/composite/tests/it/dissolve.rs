//! The end of a set that is down to one store: tokens go on, and programs of the set are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use fencelock_composite::{
    How, Migrate, Migration, Phase, Prepare, Routed, Shards, Stepped, may_stand_alone,
};
use fencelock_core::engine::{Claim, Leave, Record, RecordChange, Standing};
use fencelock_core::layers::Layer;
use fencelock_core::{ClaimIds, Client, Engine, Error, LockName, Memory, Token};
use fencelock_redis::Redis as RedisEngine;
use fencelock_sqlite::Sqlite;
use fencelock_testbed::{Dir, Redis, RedisCluster};

use crate::two::{PACE, TIGHT, TTL, Two, token};

/// Above the time in microseconds, as after a move away from MySQL: the new store would count below it.
const HIGH: Token = Token(3_000_000_000_000_000);

/// A Redis whose tokens are high, and a file, between which the locks have moved.
struct Moved {
    redis: Redis,
    dir: Dir,
}

impl Moved {
    async fn old_store(&self) -> Arc<dyn Engine> {
        let url = format!("{}?response-timeout=5s", self.redis.url());
        let url = fencelock_core::StoreUrl::parse(&url).unwrap();
        Arc::new(RedisEngine::connect(url).await.unwrap())
    }

    async fn new_store(&self) -> Arc<dyn Engine> {
        Arc::new(Sqlite::at(self.dir.join("new")).await.unwrap())
    }

    fn between(old: Arc<dyn Engine>, new: Arc<dyn Engine>) -> Migrate {
        Migrate::between(("from", old), ("to", new)).set("orders")
    }

    async fn set(&self) -> Migrate {
        Self::between(self.old_store().await, self.new_store().await)
    }

    async fn migration(&self) -> Migration {
        self.set().await.migration().unwrap()
    }

    async fn finish(&self, how: &How<'_>, to: Phase) {
        let finished = self.migration().await.finish(how).await.unwrap();
        assert_eq!(finished, Stepped::Done(to));
    }

    /// Returns the last token of a program of the set, too.
    async fn made() -> (Self, Token) {
        let redis = Redis::start().unwrap();
        let dir = Dir::new("dissolve").unwrap();
        let all = Self { redis, dir };
        raise(&*all.old_store().await, HIGH).await;
        let terms = Prepare::default().pace(PACE).tight(TIGHT);
        all.migration().await.prepare(&terms, "test").await.unwrap();
        let how = How::new("test").despite_findings(true);
        let begun = all.migration().await.begin(&how).await.unwrap();
        assert_eq!(begun, Stepped::Done(Phase::BothOld));
        all.finish(&how, Phase::BothNew).await;
        all.finish(&how, Phase::New).await;
        let engine = Arc::new(all.set().await.open().await.unwrap());
        let client = Client::new(engine).unwrap();
        let last = token(&client, "x").await;
        client.close().await.unwrap();
        assert!(last > HIGH);
        (all, last)
    }

    /// The new store loses all its data, and an administrator gives it its record again. Its counter begins at the time then.
    async fn lose_the_counter(&self) {
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let how = How::new("test").record_lost(true);
        self.finish(&how, Phase::New).await;
    }

    async fn plain_token(&self) -> Token {
        let client = Client::new(self.new_store().await).unwrap();
        let token = token(&client, "x").await;
        client.close().await.unwrap();
        token
    }

    async fn record(&self) -> String {
        self.new_store().await.record("", None).await.unwrap().text
    }
}

/// Raises the tokens of a store, as a move from a store with higher ones does.
async fn raise(engine: &dyn Engine, floor: Token) {
    let id = ClaimIds::new().unwrap().next();
    let claim = Claim::new(id, "test", LockName::new("raise").unwrap());
    let claim = claim.ttl(TTL).record(true).floor(floor);
    let placed = engine.place(&claim).await.unwrap();
    assert!(matches!(placed, Standing::Held(_)), "{placed:?}");
    engine.withdraw(&claim, Leave::Release).await.unwrap();
}

#[tokio::test]
async fn tokens_of_the_plain_store_are_above_all_earlier_ones() {
    let (all, last) = Moved::made().await;
    all.lose_the_counter().await;
    let dissolved = all.migration().await.dissolve("test").await.unwrap();
    assert!(matches!(dissolved, Stepped::Dissolved(_)), "{dissolved:?}");
    assert!(may_stand_alone(&all.record().await));
    let plain = all.plain_token().await;
    assert!(plain > HIGH, "{plain} after {last}");
    let again = all.migration().await.dissolve("test").await.unwrap();
    assert_eq!(again, dissolved);
}

/// A store whose record can be read, and whose change is never answered.
#[derive(Debug)]
struct Hangs {
    engine: Arc<dyn Engine>,
    asked: Arc<AtomicBool>,
}

#[async_trait::async_trait]
impl Layer for Hangs {
    fn below(&self) -> &dyn Engine {
        &*self.engine
    }

    async fn record(&self, scope: &str, change: Option<&RecordChange>) -> Result<Record, Error> {
        if change.is_some() {
            self.asked.store(true, SeqCst);
            std::future::pending::<()>().await;
        }
        self.engine.record(scope, change).await
    }
}

impl std::fmt::Display for Hangs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.engine.fmt(f)
    }
}

#[tokio::test]
async fn an_end_that_is_killed_after_the_floor_is_completed_by_the_next_one() {
    let (all, _) = Moved::made().await;
    all.lose_the_counter().await;
    let before = all.record().await;
    let (engine, asked) = (all.new_store().await, Arc::new(AtomicBool::new(false)));
    let hangs = Hangs {
        engine,
        asked: Arc::clone(&asked),
    };
    let killed = Moved::between(all.old_store().await, Arc::new(hangs));
    let killed = killed.migration().unwrap();
    let killed = tokio::spawn(async move { killed.dissolve("killed").await });
    crate::until("the record is written", async || asked.load(SeqCst)).await;
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    // The floor is in the counter before the record goes.
    assert_eq!(all.record().await, before);
    assert!(all.plain_token().await > HIGH);
    let again = all.migration().await.dissolve("test").await.unwrap();
    assert!(matches!(again, Stepped::Dissolved(_)), "{again:?}");
    assert!(may_stand_alone(&all.record().await));
    assert!(all.plain_token().await > HIGH);
}

#[tokio::test]
async fn a_set_whose_move_is_not_over_is_refused() {
    let two = Two::prepared().await;
    let refused = async |phase: u32| {
        let stepped = two.migration().dissolve("test").await.unwrap();
        let Stepped::NotYet(why) = &stepped else {
            panic!("{phase}: {stepped:?}")
        };
        assert!(why.contains(&format!("phase {phase}")), "{why}");
    };
    refused(0).await;
    two.begin().await;
    refused(1).await;
    two.finish(Phase::BothNew).await;
    refused(3).await;
    token(&two.client().await, "x").await;
    two.finish(Phase::New).await;
    let ended = two.migration().dissolve("test").await.unwrap();
    assert!(matches!(ended, Stepped::Dissolved(_)), "{ended:?}");
}

/// A program of the set may rely on what it knows for the pace. Then it gets no lock any more, and no step brings the set back.
#[tokio::test]
async fn programs_of_a_dissolved_set_are_refused() {
    let two = Two::prepared().await;
    two.move_all().await;
    let running = two.client().await;
    let last = token(&running, "x").await;
    two.migration().dissolve("test").await.unwrap();
    let plain = Client::new(Arc::new(two.new.another())).unwrap();
    assert!(token(&plain, "x").await > last);
    let refusal = Arc::new(std::sync::Mutex::new(String::new()));
    crate::until("it is refused", async || {
        match running.try_lock("y").ttl(TTL).await {
            Ok(guard) => {
                guard.release().await.unwrap();
                false
            }
            Err(error) => {
                *refusal.lock().unwrap() = error.to_string();
                true
            }
        }
    })
    .await;
    let refusal = refusal.lock().unwrap().clone();
    assert!(refusal.contains("was dissolved"), "{refusal}");
    let how = How::new("test").record_lost(true);
    for refused in [
        two.migration().abort(&how).await.unwrap_err(),
        two.migration().finish(&how).await.unwrap_err(),
    ] {
        assert!(refused.to_string().contains("was dissolved"), "{refused}");
    }
}

/// Programs of the last set may hold locks for its pace, and the steps of the next one wait only for their own.
#[tokio::test]
async fn the_next_set_knows_the_pace_of_the_last_one() {
    let two = Two::prepared().await;
    two.move_all().await;
    two.migration().dissolve("test").await.unwrap();
    let third = Memory::new();
    let next = || {
        let store = |memory: &Memory| Arc::new(memory.another()) as Arc<dyn Engine>;
        Migrate::between(("from", store(&two.new)), ("to", store(&third)))
            .set("orders")
            .migration()
            .unwrap()
    };
    let terms = Prepare::default().tight(TIGHT);
    let short = next().prepare(&terms.clone().pace(PACE / 2), "test").await;
    let short = short.unwrap_err().to_string();
    assert!(short.contains("use no shorter ones"), "{short}");
    let done = next().prepare(&terms.pace(PACE), "test").await.unwrap();
    assert_eq!(done, Stepped::Done(Phase::Old));
}

fn one_shard(store: Arc<dyn Engine>) -> Shards {
    Routed::shards([("a", store)]).set("orders")
}

#[tokio::test]
async fn a_set_of_one_shard_is_dissolved_and_its_store_can_be_used_again() {
    let memory = Memory::new();
    let store = || Arc::new(memory.another()) as Arc<dyn Engine>;
    one_shard(store()).init().await.unwrap();
    let two = Routed::shards([
        ("a", store()),
        ("b", Arc::new(Memory::new()) as Arc<dyn Engine>),
    ]);
    let several = two.set("orders").dissolve("test").await.unwrap();
    assert!(matches!(several, Stepped::NotYet(_)), "{several:?}");
    let ended = one_shard(store()).dissolve("test").await.unwrap();
    assert!(matches!(ended, Stepped::Dissolved(_)), "{ended:?}");
    let refused = one_shard(store()).open().await.unwrap_err().to_string();
    assert!(refused.contains("was dissolved"), "{refused}");
    one_shard(store()).init().await.unwrap();
    one_shard(store()).open().await.unwrap();
}

/// Each slot of a cluster has a counter, and all of them must be above the floor.
#[tokio::test]
async fn the_tokens_of_all_names_of_a_cluster_are_above_the_floor() {
    let (redis, cluster) = (
        Redis::start().unwrap(),
        RedisCluster::start(3, 0, 60_000, None).unwrap(),
    );
    let open = async |url: String| {
        let url = format!("{url}?response-timeout=5s");
        let url = fencelock_core::StoreUrl::parse(&url).unwrap();
        Arc::new(RedisEngine::connect(url).await.unwrap()) as Arc<dyn Engine>
    };
    raise(&*open(redis.url()).await, HIGH).await;
    let file = Dir::new("dissolve").unwrap();
    let file = async || {
        let file = Sqlite::at(file.join("new")).await.unwrap();
        Arc::new(file) as Arc<dyn Engine>
    };
    let to_cluster = async || {
        let set = Moved::between(open(redis.url()).await, open(cluster.url()).await);
        set.migration().unwrap()
    };
    let from_cluster = async || {
        let set = Migrate::between(("from", open(cluster.url()).await), ("to", file().await));
        set.set("payments").migration().unwrap()
    };
    move_and_dissolve(to_cluster).await;
    let client = Client::new(open(cluster.url()).await).unwrap();
    for number in 0..32 {
        let first = token(&client, &format!("lock/{number}")).await;
        assert!(first > HIGH, "{first}");
    }
    client.close().await.unwrap();
    // One slot's counter is above all others, and the file's tokens are above that one.
    let higher = Token(HIGH.get() + 3_600_000_000);
    raise(&*open(cluster.url()).await, higher).await;
    move_and_dissolve(from_cluster).await;
    let client = Client::new(file().await).unwrap();
    let first = token(&client, "raise").await;
    assert!(first > higher, "{first}");
    client.close().await.unwrap();
}

/// Makes all steps of a move that nobody has prepared yet.
async fn move_and_dissolve(migration: impl AsyncFn() -> Migration) {
    let terms = Prepare::default().pace(PACE).tight(TIGHT).replace(true);
    let prepared = migration().await.prepare(&terms, "test").await.unwrap();
    assert!(matches!(prepared, Stepped::Done(_)), "{prepared:?}");
    let how = How::new("test").despite_findings(true);
    migration().await.begin(&how).await.unwrap();
    for _ in 0..2 {
        migration().await.finish(&how).await.unwrap();
    }
    let ended = migration().await.dissolve("test").await.unwrap();
    assert!(matches!(ended, Stepped::Dissolved(_)), "{ended:?}");
}
