//! What an observer learns of the stores of a set, and the labels of stores.

use std::sync::{Arc, Mutex};

use fencelock_composite::{Phase, Routed};
use fencelock_core::layers::{Fault, Trouble};
use fencelock_core::{Client, Engine, Memory, Observer, StoreChange};

use crate::two::{Two, token};
use crate::{name_on, until};

#[derive(Debug, Default)]
struct Changes(Mutex<Vec<(String, StoreChange)>>);

impl Changes {
    fn seen(&self) -> Vec<(String, StoreChange)> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Changes {
    fn store_changed(&self, store: &str, change: StoreChange) {
        let change = (store.to_owned(), change);
        self.0.lock().unwrap().push(change);
    }
}

fn observed(engine: Arc<dyn Engine>) -> (Client, Arc<Changes>) {
    let changes = Arc::<Changes>::default();
    let client = Client::builder(engine).observer(changes.clone());
    (client.build().unwrap(), changes)
}

#[tokio::test]
async fn an_observer_learns_which_shard_is_away_and_back() {
    let (one, other) = (Memory::new(), Memory::new());
    let (fault, faults) = Fault::new(Arc::new(other.another()));
    let shards = |second: Arc<dyn Engine>| -> [(&str, Arc<dyn Engine>); 2] {
        [("a", Arc::new(one.another())), ("b", second)]
    };
    let init = Routed::shards(shards(Arc::new(other.another()))).set("orders");
    init.init().await.unwrap();
    let set = Routed::shards(shards(Arc::new(fault))).set("orders");
    let set = Arc::new(set.open().await.unwrap());
    let (client, changes) = observed(set.clone());
    let name = name_on(&set, "b");
    assert_eq!(client.store_of(&name).unwrap(), "b");
    assert_eq!(client.store_of(&name_on(&set, "a")).unwrap(), "a");
    token(&client, &name).await;
    assert_eq!(changes.seen(), []);
    faults.by_chance(|_| Trouble::LoseRequest);
    until("b is away", async || {
        client.try_lock(&name).await.unwrap_err();
        !changes.seen().is_empty()
    })
    .await;
    token(&client, &name_on(&set, "a")).await;
    faults.by_chance(|_| Trouble::None);
    until("b is back", async || client.try_lock(&name).await.is_ok()).await;
    let b = |change| ("b".to_owned(), change);
    assert_eq!(changes.seen(), [b(StoreChange::Away), b(StoreChange::Back)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_observer_learns_each_phase_of_a_move() {
    let two = Two::prepared().await;
    let (client, changes) = observed(two.engine().await);
    assert_eq!(client.store_of("x").unwrap(), "from");
    two.begin().await;
    let seen = async |count: usize| {
        until("the phase is known", async || changes.seen().len() >= count).await;
    };
    seen(1).await;
    assert_eq!(client.store_of("x").unwrap(), "from");
    two.finish(Phase::BothNew).await;
    until("the new store counts", async || {
        client.store_of("x").unwrap() == "to"
    })
    .await;
    two.finish(Phase::New).await;
    let last = StoreChange::Phase(Phase::New.as_str());
    until("the last phase is known", async || {
        changes
            .seen()
            .last()
            .is_some_and(|(_, change)| *change == last)
    })
    .await;
    let mut phases: Vec<_> = changes.seen();
    // The hush is short. A process may learn the next phase first.
    phases.retain(|(_, change)| *change != StoreChange::Phase(Phase::Hush.as_str()));
    let of_set = |phase: Phase| {
        (
            "migrate:orders".to_owned(),
            StoreChange::Phase(phase.as_str()),
        )
    };
    assert_eq!(
        phases,
        [Phase::BothOld, Phase::BothNew, Phase::New].map(of_set)
    );
}
