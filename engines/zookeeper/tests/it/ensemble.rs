//! Three servers that lose their leader under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::{Client, Release};
use fencelock_testbed::{Ensemble, ZooKeeper};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{connect, soon};

/// How long hand-offs may stop when a leader goes; servers with ticks of 200 ms need a second or two.
const GAP: Duration = Duration::from_secs(12);

/// Many who want one lock, and what they saw.
struct Load {
    over: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn start(url: &str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let turns = Arc::new(AtomicU64::new(0));
        let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..6 {
            let client = connect(url).await;
            let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let Ok(guard) = client.lock("hot").ttl(Duration::from_secs(10)).await else {
                        continue;
                    };
                    {
                        let mut last = last.lock().unwrap();
                        let token = guard.token().get();
                        assert!(token > *last, "{token} after {last}");
                        *last = token;
                    }
                    // Whoever believes to hold is alone.
                    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
                    tokio::task::yield_now().await;
                    assert!(guard.is_valid());
                    assert!(inside.swap(false, Ordering::SeqCst));
                    turns.fetch_add(1, Ordering::SeqCst);
                    // It may not be answered; then it is repeated behind.
                    drop(guard.release().await);
                }
            });
        }
        Self { over, turns, tasks }
    }

    /// Waits for so many more turns; how long that took.
    async fn turns(&self, more: u64) -> Duration {
        let begun = Instant::now();
        let until = self.turns.load(Ordering::SeqCst) + more;
        soon("turns", async {
            while self.turns.load(Ordering::SeqCst) < until {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        begun.elapsed()
    }

    async fn end(mut self) {
        self.over.store(true, Ordering::SeqCst);
        while let Some(ended) = soon("the load ends", self.tasks.join_next()).await {
            ended.unwrap();
        }
    }
}

async fn through_a_lost_leader(lose: impl AsyncFnOnce(&mut Ensemble, usize)) {
    let mut ensemble = ZooKeeper::builder().ensemble().unwrap();
    let url = ensemble.url();
    let holder: Client = connect(&url).await;
    let kept = holder
        .lock("kept")
        .ttl(Duration::from_secs(20))
        .await
        .unwrap();
    // It has moved to a session that survives an election.
    soon("a renewal", kept.prolonged()).await;
    let load = Load::start(&url).await;
    load.turns(100).await;
    let leader = ensemble.leader().unwrap();
    lose(&mut ensemble, leader).await;
    let gap = load.turns(20).await;
    assert!(gap < GAP, "no hand-offs for {gap:?}");
    soon("a renewal with the next leader", kept.prolonged()).await;
    assert!(kept.is_valid(), "the session survived, so does the hold");
    assert_ne!(ensemble.leader_but(Some(leader)).unwrap(), leader);
    load.turns(100).await;
    load.end().await;
    let view = holder.look("kept").await.unwrap();
    assert_eq!(view.token(), Some(kept.token()));
    kept.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_no_hold() {
    through_a_lost_leader(async |ensemble, leader| ensemble.kill9(leader)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_costs_no_hold() {
    through_a_lost_leader(async |ensemble, leader| ensemble.isolate(leader).unwrap()).await;
}

/// Each session asks the servers in an order of its own: of many, some ask the one that is down first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_at_the_start_is_passed_over() {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    let url = ensemble.url();
    let down = (ensemble.leader().unwrap() + 1) % 3;
    ensemble.kill9(down);
    for _ in 0..6 {
        let client = soon("a server that is up", connect(&url)).await;
        // In a session of its own.
        let wish = client.lock("a").ttl(Duration::from_secs(1));
        let guard = soon("the lock", wish).await.unwrap();
        soon("a renewal", guard.prolonged()).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}
