//! Three members, and a leader that is killed, paused or cut off from the others under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencelock::{Client, Clock, Error, Release};
use fencelock_testbed::{Etcd, Flow, Proxy};

use crate::{soon, until, wait_for, waiters};

/// On a busy machine a cluster may lose its leader for a while without a fault.
const PATIENT: &str = "?connect-timeout=20s";

/// A hold: its beginning and end for its client, and its token.
type Stay = (u64, u64, u64);

/// Four clients that take one lock again and again, and record their holds.
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
            // Long enough that no place and no hold expires in this test.
            let client = open(etcd, "?claim-window=60s&connect-timeout=20s").await;
            let (over, done, stays) = (Arc::clone(&over), Arc::clone(&done), Arc::clone(&stays));
            tasks.push(tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let request = client.lock("contended").ttl(Duration::from_secs(60));
                    let Ok(guard) = request.await else {
                        continue;
                    };
                    let from = Clock::Boot.now().as_nanos();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    // A hold that was lost meanwhile ended with its validity.
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

    /// Waits for eight more holds.
    async fn goes_on(&self, what: &str) -> Duration {
        let (begun, before) = (Instant::now(), self.done.load(Ordering::SeqCst));
        until(what, async || {
            self.done.load(Ordering::SeqCst) >= before + 8
        })
        .await;
        begun.elapsed()
    }

    /// Checks that holds did not overlap, and that tokens increased.
    async fn judge(self) {
        self.over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            soon("the load ends", task).await.unwrap();
        }
        let mut stays = self.stays.lock().unwrap().clone();
        stays.sort_unstable();
        for pair in stays.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            assert!(one.1 <= two.0, "overlapping holds: {one:?} and {two:?}");
            assert!(one.2 < two.2, "tokens out of order: {one:?} and {two:?}");
        }
    }
}

/// Hand-offs go on while the leader is down and after it is back. Another lock is held throughout.
async fn through(etcd: &Etcd, fault: impl AsyncFn(usize), heal: impl AsyncFn(usize)) {
    let load = Load::start(etcd).await;
    let one = open(etcd, PATIENT).await;
    let guard = one.lock("kept").ttl(Duration::from_secs(10)).await.unwrap();
    load.goes_on("the load begins").await;
    let leader = etcd.leader().unwrap();
    fault(leader).await;
    let took = load.goes_on("hand-offs continue without it").await;
    println!("hand-offs continued after {took:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    heal(leader).await;
    load.goes_on("and when it is back").await;
    soon("a renewal", guard.prolonged()).await;
    assert!(guard.is_valid());
    let sequencer = guard.sequencer().await.unwrap();
    assert!(one.check(&sequencer).await.unwrap());
    load.judge().await;
}

#[tokio::test]
async fn a_leader_is_killed() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let kill = async |leader| etcd.kill9(leader);
    through(&etcd, kill, async |leader| etcd.launch(leader).unwrap()).await;
}

#[tokio::test]
async fn a_leader_is_cut_off_and_comes_back() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let cut_off = async |leader| etcd.cut_off(leader).unwrap();
    through(&etcd, cut_off, async |leader| etcd.rejoin(leader).unwrap()).await;
}

#[tokio::test]
async fn a_leader_hangs_and_goes_on() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let pause = async |leader| etcd.pause(leader).unwrap();
    through(&etcd, pause, async |leader| etcd.resume(leader).unwrap()).await;
}

/// The holder's client reaches only a leader that the other members have replaced.
#[tokio::test]
async fn a_holder_at_a_leader_that_is_cut_off_learns_of_the_loss_first() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let leader = etcd.leader().unwrap();
    let others = (0..3).filter(|member| *member != leader);
    let others: Vec<u16> = others.map(|member| etcd.port(member)).collect();
    let open = async |ports: &[u16]| {
        let url = etcd.url_at(ports) + PATIENT;
        fencelock::connect(&url).await.unwrap()
    };
    let (far, near) = (open(&[etcd.port(leader)]).await, open(&others).await);
    let guard = far.lock("a").ttl(Duration::from_secs(2)).await.unwrap();
    let waiting = wait_for(&near, "a");
    waiters(&near, "a", 1).await;
    soon("a renewal", guard.prolonged()).await;
    etcd.cut_off(leader).unwrap();
    let next = soon("the next grant", waiting).await.unwrap().unwrap();
    assert!(guard.valid_until() < Clock::Boot.now() && !guard.is_valid());
    assert!(next.is_valid() && next.token() > guard.token());
    etcd.rejoin(leader).unwrap();
    let late = soon("the late release", guard.release()).await;
    assert!(!matches!(late, Ok(Release::Released)), "{late:?}");
    let sequencer = next.sequencer().await.unwrap();
    // The member that is back may cause another election.
    until("the store confirms the next grant", async || {
        near.check(&sequencer).await.is_ok_and(|held| held)
    })
    .await;
}

/// One member stops answering without closing its connection. The other members can be reached.
#[tokio::test]
async fn no_hold_is_lost_by_one_silent_member() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let proxies = [0, 1, 2].map(|member| Proxy::start(etcd.port(member)).unwrap());
    let ports = proxies.each_ref().map(Proxy::port);
    let url = format!("{}{PATIENT}&response-timeout=500ms", etcd.url_at(&ports));
    let (far, near) = (
        fencelock::connect(&url).await.unwrap(),
        open(&etcd, PATIENT).await,
    );
    let guard = far.lock("a").ttl(Duration::from_secs(6)).await.unwrap();
    soon("a renewal", guard.prolonged()).await;
    for proxy in proxies.iter().filter(|proxy| proxy.open() > 0) {
        proxy.both(Flow::Lose);
    }
    let connected = |proxy: &&Proxy| proxy.open() > 0;
    assert_eq!(proxies.iter().filter(connected).count(), 1);
    for _ in 0..2 {
        soon("a renewal over another member", guard.prolonged()).await;
    }
    assert!(guard.is_valid());
    let sequencer = guard.sequencer().await.unwrap();
    assert!(near.check(&sequencer).await.unwrap());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn without_a_quorum_holds_are_lost_in_time() {
    let etcd = Etcd::cluster(3).start().unwrap();
    let one = open(&etcd, PATIENT).await;
    let guard = one.lock("a").ttl(Duration::from_secs(6)).await.unwrap();
    soon("a renewal", guard.prolonged()).await;
    for member in [0, 1] {
        etcd.kill9(member);
    }
    soon("the loss", guard.lost()).await;
    let late = Clock::Boot.now().since(guard.valid_until());
    // Its session would last for two seconds more.
    assert!(late < Duration::from_millis(1900), "{late:?}");
    let error = soon("an error", one.try_lock("b")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = soon("an error", open_for(&etcd, "?connect-timeout=1s")).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    for member in [0, 1] {
        etcd.launch(member).unwrap();
    }
    let next = soon("the lock", one.lock("a")).await.unwrap();
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}

async fn open(etcd: &Etcd, options: &str) -> Client {
    open_for(etcd, options).await.unwrap()
}

async fn open_for(etcd: &Etcd, options: &str) -> fencelock::Result<Client> {
    fencelock::connect(format!("{}{options}", etcd.url())).await
}
