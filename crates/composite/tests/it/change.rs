//! A set of shards that is about to get others.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use fencelock_composite::{
    How, KeyRule, Map, Migrate, Moving, Phase, Prepare, Routed, Shards, Stepped,
};
use fencelock_core::{Client, Engine, Error, LockName, Memory};

use crate::two::{PACE, SLOW_PACE, TIGHT, change_record, version};

/// Three stores. The set `orders` has those at the places `before`, and `orders3` has those at the places `after`.
pub(crate) struct Change {
    pub(crate) stores: [Memory; 3],
    before: Range<usize>,
    after: Range<usize>,
}

pub(crate) const IDS: [&str; 3] = ["a", "b", "c"];

/// The name of the set that makes the change.
pub(crate) const SET: &str = "change";

impl Change {
    /// The first stores.
    pub(crate) async fn made(before: usize, after: usize) -> Self {
        Self::of(0..before, 0..after).await
    }

    pub(crate) async fn of(before: Range<usize>, after: Range<usize>) -> Self {
        let stores = [Memory::new(), Memory::new(), Memory::new()];
        let change = Self {
            stores,
            before,
            after,
        };
        change.before().init().await.unwrap();
        change
    }

    pub(crate) async fn prepared(before: usize, after: usize) -> Self {
        Self::paced(before, after, PACE).await
    }

    pub(crate) async fn paced(before: usize, after: usize, pace: Duration) -> Self {
        let change = Self::made(before, after).await;
        change.prepare(&terms().pace(pace)).await.unwrap();
        change
    }

    /// The store `a` is replaced by `c`. So `b` gets names from `a`, and gives names to `c`.
    pub(crate) async fn replaces() -> Self {
        let change = Self::of(0..2, 1..3).await;
        change.prepare(&terms().pace(SLOW_PACE)).await.unwrap();
        change
    }

    pub(crate) fn shards(&self, places: &Range<usize>) -> Shards {
        let shards = IDS[places.clone()].iter().zip(&self.stores[places.clone()]);
        Routed::shards(
            shards.map(|(id, store)| (*id, Arc::new(store.another()) as Arc<dyn Engine>)),
        )
    }

    pub(crate) fn before(&self) -> Shards {
        self.shards(&self.before).set("orders")
    }

    pub(crate) fn after(&self) -> Shards {
        self.shards(&self.after).set("orders3")
    }

    pub(crate) fn stores(&self) -> Migrate {
        Migrate::shards(self.before(), self.after()).set(SET)
    }

    pub(crate) async fn prepare(&self, terms: &Prepare) -> Result<Stepped, Error> {
        let migration = self.stores().migration().unwrap();
        migration.prepare(terms, "test").await
    }

    pub(crate) async fn engine(&self) -> Arc<Moving> {
        Arc::new(self.stores().open().await.unwrap())
    }

    pub(crate) async fn client(&self) -> Client {
        Client::new(self.engine().await).unwrap()
    }

    pub(crate) async fn begin(&self) {
        let migration = self.stores().migration().unwrap();
        let begun = migration.begin(&How::new("test")).await.unwrap();
        assert_eq!(begun, Stepped::Done(Phase::BothOld));
    }

    pub(crate) async fn finish(&self, to: Phase) {
        let migration = self.stores().migration().unwrap();
        let finished = migration.finish(&How::new("test")).await.unwrap();
        assert_eq!(finished, Stepped::Done(to));
    }

    pub(crate) async fn abort(&self) {
        let migration = self.stores().migration().unwrap();
        let aborted = migration.abort(&How::new("test")).await.unwrap();
        assert_eq!(aborted, Stepped::Done(Phase::Old));
    }

    /// A name that is on these shards before and after the change.
    pub(crate) fn name(&self, before: &str, after: &str) -> String {
        let map = |places: &Range<usize>| {
            let ids = IDS[places.clone()].iter();
            Map::new(ids.map(|id| (*id, 1)), KeyRule::default()).unwrap()
        };
        let (old, new) = (map(&self.before), map(&self.after));
        let mut names = (0..).map(|number| format!("name/{number}"));
        let lies = |name: &String| old.shard_of(name) == before && new.shard_of(name) == after;
        names.find(lies).unwrap()
    }

    /// How many claims hold a name in each store.
    pub(crate) async fn held(&self, name: &str) -> [usize; 3] {
        let name = LockName::new(name).unwrap();
        let mut held = [0; 3];
        for (count, store) in held.iter_mut().zip(&self.stores) {
            *count = store.inspect().look(&name).await.unwrap().holders.len();
        }
        held
    }

    /// Writes a phase, with the next version, and without the wait that a real step needs.
    pub(crate) async fn set_phase(&self, phase: u32) {
        for store in &self.stores {
            change_record(store, |record| {
                if phase == Phase::Hush.number() {
                    record["hush_from"] = record["phase"].clone();
                }
                record["phase"] = phase.into();
                record["version"] = version(record, 1);
            })
            .await;
        }
    }
}

pub(crate) fn terms() -> Prepare {
    Prepare::default().pace(PACE).tight(TIGHT)
}
