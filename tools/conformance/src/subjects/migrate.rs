//! Two stores between which locks move, in a phase that stands still.

use std::time::Duration;

use async_trait::async_trait;
use fencelock::MigrateSet;
use fencelock::composite::{Prepare, Stepped};
use fencelock::engine::RecordChange;
use fencelock_testbed::{Failure, Result};
use serde_json::{Value, json};

use super::etcd::OneEtcd;
use super::redis::OneRedis;
use super::sqlite::InFile;
use crate::subject::{Store, Subject};

/// From one store to another, in this phase.
pub(crate) struct Between {
    name: &'static str,
    from: &'static dyn Subject,
    to: &'static dyn Subject,
    phase: u32,
}

/// From an SQLite file to a Redis, both stores in charge, the old one counts.
pub(crate) static IN_BOTH: Between = Between::sqlite_to_redis("migrate[1]", 1);

/// The other phases, and other stores.
pub(crate) static MORE: [Between; 5] = [
    Between::sqlite_to_redis("migrate[0]", 0),
    Between::sqlite_to_redis("migrate[3]", 3),
    Between::sqlite_to_redis("migrate[4]", 4),
    Between::redis_to_etcd("migrate-etcd[1]", 1),
    Between::redis_to_etcd("migrate-etcd[3]", 3),
];

/// The longest lease and lock-delay of a case is some minutes.
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
        let failed = |error: fencelock::Error| Failure::new(error.to_string());
        let set = MigrateSet::new("migrate", &from, &to);
        let migration = set.migration().map_err(failed)?;
        let terms = Prepare::default().pace(LONG).lock_delay(LONG / 2);
        let prepared = migration.prepare(&terms, "conformance").await;
        let prepared = prepared.map_err(failed)?;
        assert!(matches!(prepared, Stepped::Done(_)), "{prepared:?}");
        for url in [from, to] {
            set_phase(&url, self.phase).await.map_err(failed)?;
        }
        Ok(Box::new(two))
    }
}

/// Writes this phase into the record of a store. Nobody uses it yet, so nobody need be waited for.
async fn set_phase(url: &str, phase: u32) -> fencelock::Result<()> {
    let mut url = fencelock::StoreUrl::parse(url)?;
    url.set("outside-set", "yes");
    let engine = fencelock::open_engine(url).await?;
    let record = engine.record("", None).await?;
    let mut text: Value = serde_json::from_str(&record.text).expect("a record is JSON");
    text["phase"] = json!(phase);
    text["version"] = json!(2);
    if phase > 2 {
        text["floors"] = json!({ "to": FLOOR });
    }
    let change = RecordChange::new(record.version, text.to_string())?;
    engine.record("", Some(&change)).await?;
    engine.close().await
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
        let encoded = |url: String| {
            url.replace('%', "%25")
                .replace('&', "%26")
                .replace('@', "%40")
        };
        let [from, to] = self.urls().map(|url| encoded(url).replace('?', "%3F"));
        format!("migrate:?from={from}&to={to}")
    }

    async fn leftovers(&self) -> Result<u64> {
        Ok(self.0[0].leftovers().await? + self.0[1].leftovers().await?)
    }
}
