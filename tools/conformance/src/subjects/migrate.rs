//! Two stores, or two sets of shards, between which locks move. The move stays in one phase.

use std::time::Duration;

use async_trait::async_trait;
use fencelock::composite::{Prepare, Stepped};
use fencelock::engine::RecordChange;
use fencelock::{MigrateSet, ShardSet};
use fencelock_testbed::{Failure, Result};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::etcd::OneEtcd;
use super::redis::OneRedis;
use super::sqlite::InFile;
use crate::subject::{Store, Subject};

/// A move from one store to another, in this phase.
pub(crate) struct Between {
    name: &'static str,
    from: &'static dyn Subject,
    to: &'static dyn Subject,
    phase: u32,
}

/// From an SQLite file to a Redis, in phase 1: a lock is held in both stores, and the old one decides.
pub(crate) static IN_BOTH: Between = Between::sqlite_to_redis("migrate[1]", 1);

/// The other phases, and other stores.
pub(crate) static MORE: [Between; 8] = [
    Between::sqlite_to_redis("migrate[0]", 0),
    Between::sqlite_to_redis("migrate[3]", 3),
    Between::sqlite_to_redis("migrate[4]", 4),
    Between::redis_to_etcd("migrate-etcd[1]", 1),
    Between::redis_to_etcd("migrate-etcd[3]", 3),
    Between::redis_to_cluster("migrate-cluster[1]", 1),
    Between::redis_to_cluster("migrate-cluster[3]", 3),
    Between::cluster_to_sqlite("migrate-cluster-back[3]", 3),
];

/// A change from two shards to three, or back, on SQLite files. Half of the names move to the third shard, or from it.
pub(crate) struct Change {
    name: &'static str,
    /// How many shards there are before and after.
    counts: [usize; 2],
    phase: u32,
}

pub(crate) static CHANGES: [Change; 3] = [
    Change::new("migrate-shards[1]", [2, 3], 1),
    Change::new("migrate-shards[3]", [2, 3], 3),
    Change::new("migrate-shards-back[3]", [3, 2], 3),
];

/// The shards with their weights.
const SHARDS: [(&str, u8); 3] = [("a", 1), ("b", 1), ("c", 2)];

/// The longest lease and lock-delay of a case is a few minutes.
const LONG: Duration = Duration::from_secs(3600);

/// Far below the tokens of all stores, so that a claim has a floor.
const FLOOR: u64 = 1000;

impl Between {
    const fn sqlite_to_redis(name: &'static str, phase: u32) -> Self {
        Self {
            name,
            from: &InFile,
            to: &OneRedis,
            phase,
        }
    }

    const fn redis_to_etcd(name: &'static str, phase: u32) -> Self {
        Self {
            name,
            from: &OneRedis,
            to: &OneEtcd,
            phase,
        }
    }

    const fn redis_to_cluster(name: &'static str, phase: u32) -> Self {
        Self {
            name,
            from: &OneRedis,
            to: &Cluster,
            phase,
        }
    }

    const fn cluster_to_sqlite(name: &'static str, phase: u32) -> Self {
        Self {
            name,
            from: &Cluster,
            to: &InFile,
            phase,
        }
    }
}

#[async_trait]
impl Subject for Between {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claim_window(&self) -> Duration {
        self.from.claim_window().max(self.to.claim_window())
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        let two = Two([self.from.open(false).await?, self.to.open(false).await?]);
        let [from, to] = two.urls();
        let set = MigrateSet::new("migrate", &from, &to);
        let begun = begin(set, &[from, to], self.phase).await;
        begun.map_err(|error| Failure::new(error.to_string()))?;
        Ok(Box::new(two))
    }
}

impl Change {
    const fn new(name: &'static str, counts: [usize; 2], phase: u32) -> Self {
        Self {
            name,
            counts,
            phase,
        }
    }
}

#[async_trait]
impl Subject for Change {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claim_window(&self) -> Duration {
        InFile.claim_window()
    }

    async fn open(&self, _server: bool) -> Result<Box<dyn Store>> {
        let mut files = Vec::new();
        for _ in SHARDS {
            files.push(InFile.open(false).await?);
        }
        let files = Files {
            counts: self.counts,
            files,
        };
        let urls: Vec<_> = files.files.iter().map(|file| file.url()).collect();
        let shards = |count: usize| {
            let shards = SHARDS.iter().zip(&urls).take(count);
            shards.fold(ShardSet::new("shards"), |set, ((id, weight), url)| {
                set.shard(*id, *weight, url)
            })
        };
        let [before, after] = self.counts;
        let begun = async {
            fencelock::init(shards(before)).await?;
            let set = MigrateSet::new("migrate", shards(before), shards(after));
            begin(set, &urls, self.phase).await
        };
        begun
            .await
            .map_err(|error| Failure::new(error.to_string()))?;
        Ok(Box::new(files))
    }
}

/// Prepares a set, and writes a phase into the records of its stores.
async fn begin(set: MigrateSet, urls: &[String], phase: u32) -> fencelock::Result<()> {
    let terms = Prepare::default().pace(LONG).lock_delay(LONG / 2);
    let prepared = set.migration()?.prepare(&terms, "conformance").await?;
    assert!(matches!(prepared, Stepped::Done(_)), "{prepared:?}");
    for url in urls {
        set_phase(url, phase).await?;
    }
    Ok(())
}

/// Writes this phase into the record of a store. No client uses the store yet, so there is no wait.
async fn set_phase(url: &str, phase: u32) -> fencelock::Result<()> {
    let mut url = fencelock::StoreUrl::parse(url)?;
    url.set("outside-set", "yes");
    let engine = fencelock::open_engine(url).await?;
    let record = engine.record("", None).await?;
    let mut text: Value = serde_json::from_str(&record.text).expect("a record is JSON");
    text["phase"] = json!(phase);
    text["version"] = json!(2);
    if phase > 2 {
        text["floors"] = json!({ "to": FLOOR, "a": FLOOR, "b": FLOOR, "c": FLOOR });
    }
    let change = RecordChange::new(record.version, text.to_string())?;
    engine.record("", Some(&change)).await?;
    engine.close().await
}

/// The URL as the value of an option.
fn encoded(url: &str) -> String {
    let url = url.replace('%', "%25").replace('&', "%26");
    url.replace('@', "%40").replace('?', "%3F")
}

struct Files {
    counts: [usize; 2],
    files: Vec<Box<dyn Store>>,
}

#[async_trait]
impl Store for Files {
    fn url(&self) -> String {
        let sides = self.counts.map(|count| {
            let shards = SHARDS.iter().zip(&self.files).take(count);
            let shards = shards.map(|((id, weight), file)| {
                format!("{id}={}&{id}.weight={weight}", encoded(&file.url()))
            });
            encoded(&format!("shards:?{}", shards.collect::<Vec<_>>().join("&")))
        });
        let [from, to] = sides;
        format!("migrate:?from={from}&to={to}")
    }

    async fn leftovers(&self) -> Result<u64> {
        let mut left = 0;
        for file in &self.files {
            left += file.leftovers().await?;
        }
        Ok(left)
    }
}

struct Two([Box<dyn Store>; 2]);

impl Two {
    fn urls(&self) -> [String; 2] {
        [self.0[0].url(), self.0[1].url()]
    }
}

#[async_trait]
impl Store for Two {
    fn url(&self) -> String {
        let [from, to] = self.urls().map(|url| encoded(&url));
        format!("migrate:?from={from}&to={to}")
    }

    async fn leftovers(&self) -> Result<u64> {
        Ok(self.0[0].leftovers().await? + self.0[1].leftovers().await?)
    }
}
