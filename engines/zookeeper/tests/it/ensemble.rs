//! Three servers that lose their leader under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::{BootInstant, Client, Clock, Error, Release, StoreUrl, Token};
use fencelock_testbed::{Ensemble, ZooKeeper};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{connect, soon, stand};

/// How long hand-offs may stop when there is a leader again. How long the servers take to elect one is up to them.
const GAP: Duration = Duration::from_secs(12);

/// A hold: from when to when it was believed, and its token.
type Stay = (BootInstant, BootInstant, Token);

/// Many who want one lock, and when they had it.
struct Load {
    over: Arc<AtomicBool>,
    turns: Arc<AtomicU64>,
    stays: Arc<Mutex<Vec<Stay>>>,
    tasks: JoinSet<()>,
}

impl Load {
    async fn start(url: &str) -> Self {
        let over = Arc::<AtomicBool>::default();
        let turns = Arc::<AtomicU64>::default();
        let stays = Arc::<Mutex<Vec<Stay>>>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..6 {
            let client = connect(url).await;
            let (over, turns, stays) = (Arc::clone(&over), Arc::clone(&turns), Arc::clone(&stays));
            tasks.spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let Ok(guard) = client.lock("hot").ttl(Duration::from_secs(10)).await else {
                        continue;
                    };
                    let from = Clock::Boot.now();
                    // Long enough to meet another.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    // What is lost meanwhile was held until then.
                    let to = Clock::Boot.now().min(guard.valid_until());
                    stays.lock().unwrap().push((from, to, guard.token()));
                    turns.fetch_add(1, Ordering::SeqCst);
                    // It may not be answered; then it is repeated behind.
                    drop(guard.release().await);
                }
            });
        }
        Self {
            over,
            turns,
            stays,
            tasks,
        }
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
        // Whoever believed to hold was alone.
        let mut stays = self.stays.lock().unwrap().clone();
        stays.sort_unstable();
        for pair in stays.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            assert!(one.1 <= two.0, "two at once: {one:?} and {two:?}");
            assert!(one.2 < two.2, "tokens against time: {one:?} and {two:?}");
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
    ensemble.leader_but(Some(leader)).unwrap();
    let gap = load.turns(20).await;
    assert!(gap < GAP, "no hand-offs for {gap:?}");
    soon("a renewal with the next leader", kept.prolonged()).await;
    assert!(kept.is_valid(), "the session survived, so does the hold");
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

/// It keeps its connections and says nothing; only those of the servers tell that another is to lead.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hangs_costs_no_hold() {
    through_a_lost_leader(async |ensemble, leader| ensemble.server(leader).pause().unwrap()).await;
}

/// Its servers are not told that another has the lock; its clock tells it.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_behind_a_leader_that_is_cut_off_knows_first() {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    let leader = ensemble.leader().unwrap();
    let far = connect(&ensemble.server(leader).url()).await;
    let near = connect(&ensemble.server((leader + 1) % 3).url()).await;
    let guard = far.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    let waiting = stand(&near, "a", false, 1).await;
    soon("a renewal", guard.prolonged()).await;
    ensemble.isolate(leader).unwrap();
    let next = soon("the next grant", waiting).await.unwrap();
    assert!(guard.valid_until() < Clock::Boot.now() && !guard.is_valid());
    assert!(next.token() > guard.token());
    ensemble.join(leader).unwrap();
    let late = soon("the late release", guard.release()).await;
    assert!(!matches!(late, Ok(Release::Released)), "{late:?}");
    // Its client is back.
    let other = soon("another lock", far.lock("b")).await.unwrap();
    other.release().await.unwrap();
    let sequencer = next.sequencer().await.unwrap();
    assert!(next.is_valid() && near.check(&sequencer).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_holds_are_lost_in_time() {
    let mut ensemble = ZooKeeper::builder().ensemble().unwrap();
    let url = ensemble.url();
    let client = connect(&url).await;
    let guard = client.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    soon("a renewal", guard.prolonged()).await;
    let leader = ensemble.leader().unwrap();
    let dead = [leader, (leader + 1) % 3];
    for server in dead {
        ensemble.kill9(server);
    }
    soon("the loss", guard.lost()).await;
    let late = Clock::Boot.now().since(guard.valid_until());
    assert!(late < Duration::from_millis(500), "lost {late:?} late");
    let error = soon("an answer", client.try_lock("b")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let quick = StoreUrl::parse(&format!("{url}?connect-timeout=1s")).unwrap();
    let opened = soon("an answer", fencelock_zookeeper::ZooKeeper::open(quick)).await;
    let error = opened.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    for server in dead {
        ensemble.restart(server).unwrap();
    }
    let next = soon("the lock", client.lock("a")).await.unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}

/// Each session asks the servers in an order of its own: of many, some ask the one that is down first.
async fn passed_over(lose: impl AsyncFnOnce(&Ensemble, usize)) {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    // A silent one takes longer to find out.
    let url = format!("{}?connect-timeout=20s", ensemble.url());
    let down = (ensemble.leader().unwrap() + 1) % 3;
    lose(&ensemble, down).await;
    for _ in 0..3 {
        let client = soon("a server that is up", connect(&url)).await;
        // In a session of its own.
        let wish = client.lock("a").ttl(Duration::from_secs(1));
        let guard = soon("the lock", wish).await.unwrap();
        soon("a renewal", guard.prolonged()).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        // And at once, in a session so long that it waits longer for each server.
        let wish = client.try_lock("a").lock_delay(Duration::from_secs(6));
        let guard = soon("the lock", wish).await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_at_the_start_is_passed_over() {
    passed_over(async |ensemble, down| ensemble.kill9(down)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_at_the_start_is_passed_over() {
    passed_over(async |ensemble, silent| ensemble.server(silent).pause().unwrap()).await;
}
