//! A shard is replaced while programs run. A shard that stays gets names, and gives others away.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_composite::Phase;
use fencelock_core::{Client, Guard, Guards, LockName};
use futures_util::future::join_all;

use crate::change::Change;
use crate::two::{SLOW_TTL, Told, knows, told_of};

/// A store that both gets and gives names has one floor for both. Each hold has one token for others all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_has_one_token_for_others_while_a_shard_is_replaced() {
    let change = Change::replaces().await;
    let (client, other) = (change.client().await, change.engine().await);
    let owner = client.owner();
    let names = [("a", "b"), ("a", "c"), ("b", "c")].map(|(from, to)| change.name(from, to));
    let hold_all = || {
        join_all(names.iter().map(async |name| {
            let request = client.lock(name).ttl(SLOW_TTL).owner(&owner);
            request.await.unwrap()
        }))
    };
    let early = hold_all().await;
    let told = told_of(&other, &early, async {
        change.begin().await;
        knows(&other, Phase::BothOld).await;
    });
    let mut told = told.await;
    let more = told_of(&other, &early, async {
        change.finish(Phase::BothNew).await;
        knows(&other, Phase::BothNew).await;
    });
    told.extend(more.await);
    told_and_released(early, &told, &[Phase::BothOld, Phase::BothNew]).await;
    let late = hold_all().await;
    let mut told = told_of(&other, &late, async {}).await;
    let hush = told_of(&other, &late, async {
        change.set_phase(2).await;
        knows(&other, Phase::Hush).await;
    });
    told.extend(hush.await);
    told.extend(told_of(&other, &late, change.abort()).await);
    let phases = [Phase::BothNew, Phase::Hush, Phase::BothOld];
    told_and_released(late, &told, &phases).await;
}

/// Checks that others were told each hold's own token in each of these phases. Then releases all.
async fn told_and_released(guards: Vec<Guard>, told: &[Told], phases: &[Phase]) {
    for guard in guards {
        for phase in phases {
            let answer = (guard.name().clone(), Some(*phase), Some(guard.token()));
            assert!(told.contains(&answer), "{answer:?}: {told:?}");
        }
        guard.release().await.unwrap();
    }
}

/// Takes all these locks together, again and again, and checks that it alone has each of them. Returns how often it had them.
async fn takes_all(
    done: Arc<AtomicBool>,
    client: Client,
    names: [String; 4],
    taken: Arc<Taken>,
) -> usize {
    let mut count = 0;
    while !done.load(SeqCst) {
        let mut asked = names.to_vec();
        fastrand::shuffle(&mut asked);
        asked.truncate(fastrand::usize(2..=4));
        let request = client.lock_all(&asked).timeout(Duration::from_secs(20));
        let guards = request.each(|request| request.ttl(SLOW_TTL)).await.unwrap();
        taken.begin(&guards);
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(guards.is_valid());
        taken.end(&guards);
        guards.release().await.unwrap();
        count += 1;
    }
    count
}

/// Of each lock: whether somebody holds it, and the number of the highest token so far.
#[derive(Debug, Default)]
struct Taken(Mutex<HashMap<LockName, (bool, u64)>>);

impl Taken {
    fn begin(&self, guards: &Guards) {
        let mut locks = self.0.lock().unwrap();
        for guard in guards.iter() {
            let (held, highest) = locks.entry(guard.name().clone()).or_default();
            assert!(!*held, "{} is held twice", guard.name());
            assert!(guard.token().get() > *highest, "{guard:?} after {highest}");
            (*held, *highest) = (true, guard.token().get());
        }
    }

    fn end(&self, guards: &Guards) {
        let mut locks = self.0.lock().unwrap();
        for guard in guards.iter() {
            locks.entry(guard.name().clone()).or_default().0 = false;
        }
    }
}

/// In each phase, all clients take the locks in the same order, wherever the locks are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_locks_are_taken_together_in_every_phase() {
    let change = Change::replaces().await;
    let names = [("a", "b"), ("a", "c"), ("b", "b"), ("b", "c")];
    let names = names.map(|(from, to)| change.name(from, to));
    let (done, taken) = (Arc::<AtomicBool>::default(), Arc::<Taken>::default());
    let mut workers = Vec::new();
    for _ in 0..4 {
        let (done, taken) = (Arc::clone(&done), Arc::clone(&taken));
        let client = change.client().await;
        workers.push(tokio::spawn(takes_all(done, client, names.clone(), taken)));
    }
    change.begin().await;
    change.finish(Phase::BothNew).await;
    change.finish(Phase::New).await;
    change.abort().await;
    done.store(true, SeqCst);
    for worker in workers {
        let count = worker.await.unwrap();
        assert!(count > 20, "{count}");
    }
}
