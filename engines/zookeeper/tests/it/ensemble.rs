//! Three servers that lose their leader under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::{BootInstant, Client, Clock, Error, Release, StoreUrl, Token};
use fencelock_testbed::{Ensemble, ZooKeeper};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{connect, renewed, soon, wait_in_queue};

/// How long hand-offs may pause after the new leader is elected. The election itself does not count.
const GAP: Duration = Duration::from_secs(12);

/// A hold: its beginning and end as the client believed, and its token.
type Stay = (BootInstant, BootInstant, Token);

/// Many clients that take one lock in turn, and the times of their holds.
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
                    let Ok(guard) = client.lock("contended").ttl(Duration::from_secs(10)).await
                    else {
                        continue;
                    };
                    let from = Clock::Boot.now();
                    // Long enough for an overlap with a wrong second hold.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    // A hold that was lost meanwhile ended at that time.
                    let to = Clock::Boot.now().min(guard.valid_until());
                    stays.lock().unwrap().push((from, to, guard.token()));
                    turns.fetch_add(1, Ordering::SeqCst);
                    // Without a reply the release is repeated in the background.
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

    /// Waits for `more` more turns, and returns how long that took.
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
        // No two holds overlap.
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
    // After the renewal it is in a session that survives an election.
    renewed(&kept).await;
    let load = Load::start(&url).await;
    load.turns(100).await;
    let leader = ensemble.leader().unwrap();
    lose(&mut ensemble, leader).await;
    ensemble.leader_but(Some(leader)).unwrap();
    let gap = load.turns(20).await;
    assert!(gap < GAP, "no hand-offs for {gap:?}");
    renewed(&kept).await;
    assert!(kept.is_valid(), "the session survived, so does the hold");
    load.turns(100).await;
    load.end().await;
    let view = holder.look("kept").await.unwrap();
    assert_eq!(view.token(), Some(kept.token()));
    kept.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hold_is_lost_by_a_killed_leader() {
    through_a_lost_leader(async |ensemble, leader| ensemble.kill9(leader)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hold_is_lost_by_a_leader_that_is_cut_off() {
    through_a_lost_leader(async |ensemble, leader| ensemble.isolate(leader).unwrap()).await;
}

/// The hung leader keeps its connections and sends nothing. Only the other servers can tell that a new leader is needed.
#[tokio::test(flavor = "multi_thread")]
async fn no_hold_is_lost_by_a_leader_that_hangs() {
    through_a_lost_leader(async |ensemble, leader| ensemble.server(leader).pause().unwrap()).await;
}

/// The holder's server does not know that another client has the lock. The holder knows it from its own clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_at_a_leader_that_is_cut_off_learns_of_the_loss_first() {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    let leader = ensemble.leader().unwrap();
    let far = connect(&ensemble.server(leader).url()).await;
    let near = connect(&ensemble.server((leader + 1) % 3).url()).await;
    let guard = far.lock("a").ttl(Duration::from_secs(3)).await.unwrap();
    let waiting = wait_in_queue(&near, "a", false, 1).await;
    renewed(&guard).await;
    ensemble.isolate(leader).unwrap();
    let next = soon("the next grant", waiting).await.unwrap();
    assert!(guard.valid_until() < Clock::Boot.now() && !guard.is_valid());
    assert!(next.token() > guard.token());
    ensemble.join(leader).unwrap();
    let late = soon("the late release", guard.release()).await;
    assert!(!matches!(late, Ok(Release::Released)), "{late:?}");
    // The holder's client works again.
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
    let guard = client.lock("a").ttl(Duration::from_secs(6)).await.unwrap();
    renewed(&guard).await;
    let leader = ensemble.leader().unwrap();
    let dead = [leader, (leader + 1) % 3];
    for server in dead {
        ensemble.kill9(server);
    }
    soon("the loss", guard.lost()).await;
    let late = Clock::Boot.now().since(guard.valid_until());
    // Its session would last for three seconds more.
    assert!(late < Duration::from_millis(1900), "lost {late:?} late");
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

/// Each session tries the servers in a random order, so some of many sessions try the server that is down first.
async fn passed_over(lose: impl AsyncFnOnce(&Ensemble, usize)) {
    let ensemble = ZooKeeper::builder().ensemble().unwrap();
    // Finding out that a server is silent takes longer.
    let url = format!("{}?connect-timeout=20s", ensemble.url());
    let down = (ensemble.leader().unwrap() + 1) % 3;
    lose(&ensemble, down).await;
    for _ in 0..3 {
        let client = soon("a server that is up", connect(&url)).await;
        // This hold has a session of its own.
        let acquire = client.lock("a").ttl(Duration::from_secs(1));
        let guard = soon("the lock", acquire).await.unwrap();
        renewed(&guard).await;
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        // Then without a wait, in a session with a longer timeout, which waits longer for each server.
        let acquire = client.try_lock("a").lock_delay(Duration::from_secs(6));
        let guard = soon("the lock", acquire).await.unwrap();
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
