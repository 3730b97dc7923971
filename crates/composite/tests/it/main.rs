//! Tests of sets of stores: in memory where no server is needed, otherwise on real servers.
#![allow(clippy::unwrap_used)]

mod away;
mod change;
mod changes;
mod dissolve;
mod given_back;
mod growing;
mod moving;
mod records;
mod replaced;
mod routing;
mod sets;
mod steps;
mod two;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_composite::{Routed, Shards};
use fencelock_core::{Client, Engine, Memory};

/// Stores in memory, with the ids `a`, `b`, and so on.
pub(crate) struct World(Vec<Memory>);

impl World {
    /// New stores, with their records.
    pub(crate) async fn made(count: usize) -> Self {
        let world = Self((0..count).map(|_| Memory::new()).collect());
        world.set().init().await.unwrap();
        world
    }

    /// Their set, as another process would open it.
    pub(crate) fn set(&self) -> Shards {
        let shards = self.0.iter().zip(["a", "b", "c", "d"]);
        let shards = shards.map(|(store, id)| (id, Arc::new(store.another()) as Arc<dyn Engine>));
        Routed::shards(shards).set("orders")
    }

    pub(crate) async fn client(&self) -> (Client, Arc<Routed>) {
        let set = Arc::new(self.set().open().await.unwrap());
        (Client::new(set.clone()).unwrap(), set)
    }

    pub(crate) fn store(&self, at: usize) -> &Memory {
        &self.0[at]
    }
}

/// A name that is on this shard.
pub(crate) fn name_on(set: &Routed, id: &str) -> String {
    let mut names = (0..).map(|number| format!("name/{number}"));
    let on = |name: &String| set.shard_of(&fencelock_core::LockName::new(name).unwrap()) == id;
    names.find(on).unwrap()
}

/// Waits until something is true.
pub(crate) async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !done().await {
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "timed out: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
