//! Three members, and a leader that is killed, stopped and cut off from the others under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencelock::Clock;
use fencelock_testbed::Etcd;

use crate::{client, soon, until};

/// A hold: from when to when it was believed, and its token.
type Stay = (u64, u64, u64);

/// Four clients that take one lock over and over, and remember when they held it.
struct Load {
    over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    stays: Arc<Mutex<Vec<Stay>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn start(etcd: &Etcd) -> Self {
        let (over, done, stays) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            Arc::<Mutex<Vec<Stay>>>::default(),
        );
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let client = client(etcd).await;
            let (over, done, stays) = (Arc::clone(&over), Arc::clone(&done), Arc::clone(&stays));
            tasks.push(tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let wish = client.lock("hot").ttl(Duration::from_secs(5));
                    let Ok(guard) = wish.await else { continue };
                    let from = Clock::Boot.now().as_nanos();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    // What is lost meanwhile was held until then.
                    let to = Clock::Boot
                        .now()
                        .as_nanos()
                        .min(guard.valid_until().as_nanos());
                    stays.lock().unwrap().push((from, to, guard.token().get()));
                    let _ = guard.release().await;
                    done.fetch_add(1, Ordering::SeqCst);
                }
            }));
        }
        Self {
            over,
            done,
            stays,
            tasks,
        }
    }

    /// Waits until so many more holds have come and gone.
    async fn goes_on(&self, what: &str) -> Duration {
        let (begun, before) = (Instant::now(), self.done.load(Ordering::SeqCst));
        until(what, async || {
            self.done.load(Ordering::SeqCst) >= before + 8
        })
        .await;
        begun.elapsed()
    }

    /// Nobody held it beside another, and tokens went up.
    async fn judge(self) {
        self.over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            soon("the load ends", task).await.unwrap();
        }
        let mut stays = self.stays.lock().unwrap().clone();
        stays.sort_unstable();
        for pair in stays.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            assert!(one.1 <= two.0, "two at once: {one:?} and {two:?}");
            assert!(one.2 < two.2, "tokens against time: {one:?} and {two:?}");
        }
    }
}

/// A hold of its own, which must survive all of it.
async fn through(etcd: &Etcd, fault: impl AsyncFn(usize)) {
    let load = Load::start(etcd).await;
    let one = client(etcd).await;
    let guard = one.lock("kept").ttl(Duration::from_secs(10)).await.unwrap();
    load.goes_on("the load begins").await;
    let leader = etcd.leader().unwrap();
    fault(leader).await;
    let took = load.goes_on("hand-offs go on").await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    soon("a renewal", guard.prolonged()).await;
    assert!(guard.is_valid());
    let sequencer = guard.sequencer().await.unwrap();
    assert!(one.check(&sequencer).await.unwrap());
    load.judge().await;
}

#[tokio::test]
async fn the_leader_is_killed() {
    let etcd = Etcd::cluster(3).start().unwrap();
    through(&etcd, async |leader| etcd.kill9(leader)).await;
}

#[tokio::test]
async fn the_leader_is_cut_off_and_comes_back() {
    let etcd = Etcd::cluster(3).start().unwrap();
    through(&etcd, async |leader| {
        etcd.cut_off(leader).unwrap();
        until("another leads", async || {
            (0..3).any(|member| member != leader && etcd.leads(member))
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        etcd.rejoin(leader).unwrap();
    })
    .await;
}

#[tokio::test]
async fn the_leader_hangs_and_goes_on() {
    let etcd = Etcd::cluster(3).start().unwrap();
    through(&etcd, async |leader| {
        etcd.pause(leader).unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        etcd.resume(leader).unwrap();
    })
    .await;
}
