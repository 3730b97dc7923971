//! Fail-overs under load: several clients take one lock again and again while masters are killed, stopped and cut off from
//! their replicas. Every grant is checked: no token twice, no token in the wrong order, no two holders at once.
//!
//! `FENCELOCK_FAILOVERS=50 cargo test -p fencelock-redis --test it failover -- --nocapture` runs that many of each kind;
//! without the variable there are three.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::engine::Leave;
use fencelock_core::{Clock, Engine, Error};
use fencelock_testbed::{RedisCluster, RedisSentinel};

use crate::history::{Stay, faults};
use crate::support::{Store, ms, open};

/// The longest hold.
const TTL: Duration = Duration::from_millis(1500);

#[test]
fn each_kind_of_fault_is_found() {
    let stay = |token, asked, from, to| Stay {
        token,
        asked,
        from,
        to,
    };
    let right = [stay(1, 0, 1, 10), stay(2, 0, 10, 20), stay(3, 0, 30, 30)];
    assert!(faults(&right).is_empty());
    for (wrong, what) in [
        ([stay(1, 0, 1, 10), stay(1, 0, 10, 20)], "one token twice"),
        ([stay(2, 0, 1, 10), stay(1, 11, 12, 20)], "against time"),
        ([stay(1, 0, 1, 10), stay(2, 0, 9, 20)], "two at once"),
        ([stay(1, 0, 1, 100), stay(2, 0, 9, 20)], "two at once"),
    ] {
        let found = faults(&wrong);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }
}

/// How many fail-overs of each kind.
fn count() -> usize {
    let asked = std::env::var("FENCELOCK_FAILOVERS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Clients that lock and release one name until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    stays: Arc<Mutex<Vec<Stay>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn start(url: &str, name: &str) -> Self {
        let (stop, stays) = (Arc::<AtomicBool>::default(), Arc::default());
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let store = open(url).await;
            let (stop, stays) = (Arc::clone(&stop), Arc::clone(&stays));
            let name = name.to_owned();
            tasks.push(tokio::spawn(work(store, name, stop, stays)));
        }
        Self { stop, stays, tasks }
    }

    fn count(&self) -> usize {
        self.stays.lock().unwrap().len()
    }

    /// Waits for `grants` further grants.
    async fn goes_on(&self, grants: usize) {
        let (begin, before) = (Clock::Boot.now(), self.count());
        while self.count() < before + grants {
            assert!(
                Clock::Boot.now().since(begin) < Duration::from_secs(60),
                "no grants"
            );
            tokio::time::sleep(ms(5)).await;
        }
    }

    async fn end(self) -> Vec<Stay> {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        let stays = self.stays.lock().unwrap();
        stays.clone()
    }
}

async fn work(store: Store, name: String, stop: Arc<AtomicBool>, stays: Arc<Mutex<Vec<Stay>>>) {
    while !stop.load(Ordering::SeqCst) {
        let claim = store.claim(&name).ttl(TTL);
        let grant = store.lock(&claim).await;
        let from = Clock::Boot.now();
        // A client relies on a little less than the lease.
        let ends = grant.counted_from + grant.lease.mul_f64(0.98);
        // Some locks are held to the end of the lease, so that a fail-over meets a holder.
        let held = if fastrand::u8(..4) == 0 {
            TTL
        } else {
            ms(fastrand::u64(..3))
        };
        tokio::time::sleep(held).await;
        let to = Clock::Boot.now().min(ends);
        if to > from {
            stays.lock().unwrap().push(Stay {
                token: grant.tokens.first.get(),
                // Grants arrive in the order of their tokens.
                asked: from.as_nanos(),
                from: from.as_nanos(),
                to: to.as_nanos(),
            });
        }
        let begin = Clock::Boot.now();
        while Clock::Boot.now().since(begin) < TTL {
            match store.engine.withdraw(&claim, Leave::Release).await {
                Ok(_) => break,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    }
}

/// Kills the master again and again under load. Every second time the master is first cut off from its replicas.
async fn fail_over(group: &mut RedisSentinel, load: &Load) {
    for round in 0..count() {
        load.goes_on(3).await;
        let master = group.master().unwrap();
        if round % 2 == 0 {
            group.cut_replication().unwrap();
            tokio::time::sleep(ms(200)).await;
        }
        tokio::time::sleep(ms(fastrand::u64(..200))).await;
        group.servers()[master].kill9();
        let next = tokio::task::block_in_place(|| group.await_failover(master)).unwrap();
        assert_ne!(next, master);
        group.mend_replication();
        tokio::task::block_in_place(|| {
            group.rejoin(master).unwrap();
            group.await_ready().unwrap();
        });
    }
    load.goes_on(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_replicas_no_failover_grants_twice() {
    let mut group = RedisSentinel::start().unwrap();
    let url = format!("{}&replicas=2&claim-window=1s", group.url());
    let load = Load::start(&url, "r").await;
    fail_over(&mut group, &load).await;
    let stays = load.end().await;
    println!("{} grants over {} fail-overs", stays.len(), count());
    let faults = faults(&stays);
    assert!(faults.is_empty(), "{faults:#?}");
    let limits = open(&url).await.engine.promises().limits.clone();
    // The only limit: a restarted server forgets.
    assert!(
        limits.iter().all(|limit| limit.what.contains("restart")),
        "{limits:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_promotion_delay_no_failover_grants_twice() {
    let mut group = RedisSentinel::start().unwrap();
    let url = format!("{}&promotion-delay=1600ms&claim-window=1s", group.url());
    let load = Load::start(&url, "p").await;
    fail_over(&mut group, &load).await;
    // Also an old master that comes back and does not know that it was replaced.
    let master = group.master().unwrap();
    load.goes_on(3).await;
    group.servers()[master].pause().unwrap();
    tokio::task::block_in_place(|| group.await_failover(master)).unwrap();
    group.servers()[master].resume().unwrap();
    load.goes_on(10).await;
    let stays = load.end().await;
    println!("{} grants over {} fail-overs", stays.len(), count() + 1);
    let faults = faults(&stays);
    assert!(faults.is_empty(), "{faults:#?}");
    let store = open(&url).await;
    // A lease longer than the delay is not promised.
    assert_eq!(store.engine.promises().max_ttl, ms(1600));
}

/// The loss that the promises report for asynchronous replicas does happen: two clients hold at once. Tokens still grow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_replicas_and_delay_a_lock_is_lost_as_the_promises_say() {
    let group = RedisSentinel::start().unwrap();
    let store = open(&group.url()).await;
    let limits = store.engine.promises().limits.clone();
    let said = limits.iter().find(|limit| limit.what.contains("fail-over"));
    let change = &said.expect("the promises say so").change;
    assert!(
        change.contains("replicas=2") && change.contains("promotion-delay"),
        "{change}"
    );
    group.cut_replication().unwrap();
    let claim = store.claim("lost");
    let token = store.held(&claim).await.tokens.first;
    let waiter = open(&group.url()).await;
    let next = waiter.claim("lost");
    waiter.waits(&next).await;
    group.servers()[0].kill9();
    tokio::task::block_in_place(|| group.await_failover(0)).unwrap();
    // The first lease is 30 s long.
    let second = waiter.lock(&next).await.tokens.first;
    assert!(second > token, "{second} after {token}");
    // The first holder learns of the loss with its next renewal.
    let begin = Clock::Boot.now();
    loop {
        match store.renew(&claim, token).await {
            fencelock_core::engine::Renewal::Lost => break,
            fencelock_core::engine::Renewal::Unknown(error) => {
                assert!(error.is_retryable(), "{error}");
            }
            kept => panic!("{kept:?}"),
        }
        assert!(Clock::Boot.now().since(begin) < Duration::from_secs(10));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_are_an_error_and_leave_nothing() {
    let group = RedisSentinel::start().unwrap();
    let store = open(&format!("{}&replicas=2", group.url())).await;
    let claim = store.claim("s");
    store.held(&claim).await;
    store.release(&claim).await;
    group.cut_replication().unwrap();
    for claim in [store.claim("s"), store.shared("s")] {
        let error = store.engine.place(&claim).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
        assert!(error.to_string().contains("0 of 2 replicas"), "{error}");
        store.release(&claim).await;
        let left: i64 = group.servers()[0].command(&["EXISTS", "s"]).unwrap();
        assert_eq!(left, 0, "it was withdrawn");
    }
    // The claim keeps its place until then, so no late request of its own can end the next grant.
    let claim = store.claim("again");
    assert!(store.engine.place(&claim).await.is_err());
    let left: i64 = group.servers()[0].command(&["EXISTS", "again"]).unwrap();
    assert_eq!(left, 1);
    store.release(&claim).await;
    // A renewal without enough replicas fails as well.
    group.mend_replication();
    tokio::task::block_in_place(|| group.await_ready()).unwrap();
    let claim = store.claim("s");
    let token = store.lock(&claim).await.tokens.first;
    group.cut_replication().unwrap();
    let renewed = store.renew(&claim, token).await;
    let fencelock_core::engine::Renewal::Unknown(error) = renewed else {
        panic!("{renewed:?}");
    };
    assert!(error.to_string().contains("0 of 2 replicas"), "{error}");
}

/// A master of a cluster dies, and slots move, under load. A grant counts only after the replica has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_neither_a_lost_master_nor_a_moved_slot_grants_twice() {
    let mut cluster = RedisCluster::start(3, 1, 1000, None).unwrap();
    let url = format!("{}?replicas=1&claim-window=1s", cluster.url());
    // The slot of `foo` is the third master's.
    let load = Load::start(&url, "foo").await;
    let slot = 12_182;
    for (from, to) in [(2, 0), (0, 1), (1, 2)] {
        load.goes_on(5).await;
        cluster.begin_move(slot, from, to).unwrap();
        tokio::time::sleep(ms(50)).await;
        cluster.move_keys(slot, from, to).unwrap();
        tokio::time::sleep(ms(50)).await;
        cluster.end_move(slot, from, to).unwrap();
    }
    load.goes_on(5).await;
    let mut owner = 2;
    for _ in 0..count().min(20) {
        cluster.nodes()[owner].kill9();
        let next = tokio::task::block_in_place(|| cluster.await_failover(0, slot, owner)).unwrap();
        tokio::task::block_in_place(|| {
            cluster.nodes_mut()[owner].restart().unwrap();
            cluster.await_ready().unwrap();
        });
        owner = next;
        load.goes_on(5).await;
    }
    let stays = load.end().await;
    println!("{} grants", stays.len());
    let faults = faults(&stays);
    assert!(faults.is_empty(), "{faults:#?}");
}
