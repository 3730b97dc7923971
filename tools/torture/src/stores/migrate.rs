//! Two Redis servers between which all locks move, there and back, while the workers run. Or a server and a cluster. Or
//! three servers: one is added to a set of two shards, and removed. The nodes are the servers.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fencelock::MigrateSet;
use fencelock::composite::{How, Migration, Phase, Prepare, Stepped};
use fencelock_testbed::{Failure, Redis, RedisCluster, Result};
use tokio::sync::Notify;

use super::groups::address_map;
use super::redis::COUNTER;
use super::store::{STALE_QUEUE, TestStore, keys_left, kill_clients, unknown};
use crate::fault::FaultKind;
use crate::history::Rule;

pub(super) const RECORD: &str = "fencelock:record";

const SET: &str = "torture";

/// A short ttl, so that more happens in the same time.
const WINDOW: u64 = 400;

/// The longest ttl is two thirds of it.
const PACE: Duration = Duration::from_millis(1500);
const TIGHT: Duration = Duration::from_millis(400);

/// How far the old store's tokens are ahead of the new one's: an hour.
const AHEAD: u64 = 3_600_000_000;

/// How often a step is tried while a server is stopped, and the pause between two tries.
const ATTEMPTS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(100);

/// The shards of a set that gets the third one, with their weights. Half of the names move to the third one.
const SHARDS: [(&str, u8); 3] = [("a", 1), ("b", 1), ("c", 2)];

/// In a move to a cluster: after how many milliseconds it replaces a master. There are no replicas.
const NODE_TIMEOUT: u32 = 20_000;

struct Move {
    name: &'static str,
    servers: Vec<Redis>,
    /// The new store, if it is a cluster. Its nodes come after the servers.
    cluster: Option<RedisCluster>,
    paused: Vec<bool>,
    /// Whether the next step goes to the new store.
    forward: Arc<AtomicBool>,
    steps: Vec<Step>,
    /// Errors of steps.
    wrong: Arc<Mutex<Vec<String>>>,
}

/// A step under way.
struct Step {
    killed: Arc<Notify>,
    thread: JoinHandle<()>,
}

/// From one server to another.
pub(super) fn start() -> Result<Box<dyn TestStore>> {
    start_on("migrate", 2, None)
}

/// From two shards to three.
pub(super) fn start_shards() -> Result<Box<dyn TestStore>> {
    start_on("migrate-shards", SHARDS.len(), None)
}

/// From one server to a cluster, which has a counter of tokens for each slot.
pub(super) fn start_cluster() -> Result<Box<dyn TestStore>> {
    let cluster = RedisCluster::start(3, 0, NODE_TIMEOUT, Some("always"))?;
    start_on("migrate-cluster", 1, Some(cluster))
}

fn start_on(
    name: &'static str,
    count: usize,
    cluster: Option<RedisCluster>,
) -> Result<Box<dyn TestStore>> {
    let server = || Redis::builder().append_only("always").start();
    let servers: Vec<_> = (0..count).map(|_| server()).collect::<Result<_>>()?;
    let now: Vec<String> = servers[0].command(&["TIME"])?;
    let seconds: u64 = now[0].parse().map_err(Failure::to("read the time"))?;
    let ahead = (seconds * 1_000_000 + AHEAD).to_string();
    servers[0].command::<()>(&["SET", COUNTER, &ahead])?;
    let nodes = cluster.as_ref().map_or(0, |cluster| cluster.nodes().len());
    let store = Move {
        name,
        paused: vec![false; servers.len() + nodes],
        servers,
        cluster,
        forward: Arc::new(AtomicBool::new(true)),
        steps: Vec::new(),
        wrong: Arc::default(),
    };
    store.init()?;
    store.prepare()?;
    Ok(Box::new(store))
}

impl Move {
    /// The URLs of the old set and of the new one.
    fn urls(&self, ports: &[u16]) -> [String; 2] {
        let servers = self.servers.iter().zip(ports);
        let urls = servers.map(|(server, port)| {
            let url = server.url_at(*port);
            format!("{url}?claim-window={WINDOW}ms")
        });
        let mut urls: Vec<_> = urls.collect();
        if let Some(cluster) = &self.cluster {
            let map = address_map(cluster.nodes(), &ports[self.servers.len()..]);
            let map = map.map_or_else(String::new, |map| format!("&address-map={map}"));
            urls.push(format!("{}?claim-window={WINDOW}ms{map}", cluster.url()));
        }
        if let [from, to] = &urls[..] {
            return [from.clone(), to.clone()];
        }
        [2, 3].map(|count| {
            let shards = SHARDS.iter().zip(&urls).take(count);
            let shards = shards
                .map(|((id, weight), url)| format!("{id}={}&{id}.weight={weight}", encoded(url)));
            let shards: Vec<_> = shards.collect();
            format!("shards:?set={SET}-{count}&{}", shards.join("&"))
        })
    }

    fn migration(&self) -> Result<Migration> {
        let [from, to] = self.urls(&self.ports());
        let set = MigrateSet::new(SET, &from, &to);
        set.migration().map_err(Failure::to("describe the stores"))
    }

    fn nodes(&self) -> Vec<&Redis> {
        let cluster = self.cluster.iter().flat_map(RedisCluster::nodes);
        self.servers.iter().chain(cluster).collect()
    }

    /// Makes the set of two shards.
    fn init(&self) -> Result<()> {
        if self.servers.len() < SHARDS.len() {
            return Ok(());
        }
        let [before, _] = self.urls(&self.ports());
        on_a_thread(async move {
            let made = fencelock::init(before).await;
            made.map_err(Failure::to("make the set"))
        })
    }

    /// Writes the first record, or a lost one again.
    fn prepare(&self) -> Result<()> {
        let migration = self.migration()?;
        let terms = Prepare::default().pace(PACE).tight(TIGHT);
        on_a_thread(async move {
            let prepared = migration.prepare(&terms, "torture").await;
            prepared.map(|_| ()).map_err(Failure::to("prepare"))
        })
    }

    /// An administrator makes a step. At the last phase, and at the first one, the direction changes. An administrator
    /// who is `against` the direction goes the other way.
    fn step(&mut self, against: bool) -> Result<()> {
        let migration = self.migration()?;
        let (forward, wrong) = (Arc::clone(&self.forward), Arc::clone(&self.wrong));
        let killed = Arc::new(Notify::new());
        let kill = Arc::clone(&killed);
        let thread = std::thread::spawn(move || {
            let stepped = on_a_thread(async move {
                tokio::select! {
                    stepped = walk(&migration, &forward, against) => stepped,
                    // As after kill -9, at any point of the step.
                    () = kill.notified() => Ok(()),
                }
            });
            if let Err(error) = stepped {
                let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                wrong.push(error.to_string());
            }
        });
        self.steps.push(Step { killed, thread });
        Ok(())
    }

    fn end(&mut self) {
        for step in self.steps.drain(..) {
            // The thread itself reports a panic.
            let _ = step.thread.join();
        }
    }
}

/// Makes one step there or back. It tries again while a server does not answer, since the set must not stay in the
/// hush.
async fn walk(migration: &Migration, forward: &AtomicBool, against: bool) -> Result<()> {
    let how = How::new("torture")
        .patience(Duration::ZERO)
        .record_lost(true);
    for _ in 0..ATTEMPTS {
        match attempt(migration, &how, forward.load(SeqCst) != against).await {
            Ok(Stepped::Done(Phase::New)) => forward.store(false, SeqCst),
            Ok(Stepped::Done(Phase::Old)) => forward.store(true, SeqCst),
            // A client holds a lock in one store alone.
            Ok(_) => {}
            Err(error) if error.is_away() => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(Failure::new(format!("a step: {error}"))),
        }
        break;
    }
    Ok(())
}

async fn attempt(
    migration: &Migration,
    how: &How<'_>,
    forward: bool,
) -> fencelock::Result<Stepped> {
    if !forward {
        return migration.abort(how).await;
    }
    match migration.status().await?.phase {
        Phase::Old => migration.begin(&how.clone().despite_findings(true)).await,
        _ => migration.finish(how).await,
    }
}

pub(super) fn on_a_thread(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<()> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime
            .map_err(Failure::to("start a runtime"))?
            .block_on(work)
    };
    match std::thread::spawn(run).join() {
        Ok(done) => done,
        Err(_) => Err(Failure::new("a step panicked")),
    }
}

/// The URL as the value of an option.
pub(super) fn encoded(url: &str) -> String {
    let url = url.replace('%', "%25").replace('?', "%3F");
    url.replace('&', "%26").replace('@', "%40")
}

impl TestStore for Move {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ports(&self) -> Vec<u16> {
        self.nodes().into_iter().map(Redis::port).collect()
    }

    fn url(&self, ports: &[u16]) -> String {
        let [from, to] = self.urls(ports).map(|url| encoded(&url));
        format!("migrate:?set={SET}&from={from}&to={to}")
    }

    fn faults(&self) -> Vec<FaultKind> {
        let mut faults = vec![
            FaultKind::Step,
            FaultKind::StepKilled,
            FaultKind::Pause,
            FaultKind::KillConnections,
        ];
        if self.cluster.is_none() {
            faults.push(FaultKind::RecordLost);
        }
        faults
    }

    fn begin(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Step => self.step(false),
            // A step the other way, whose administrator is killed.
            FaultKind::StepKilled => self.step(true),
            FaultKind::RecordLost => {
                // Delete it in one store at a time: without any record the set is lost.
                for other in (0..self.servers.len()).filter(|other| *other != node) {
                    // A paused server cannot say whether it has the record.
                    if self.paused[other]
                        || self.servers[other].command::<u32>(&["EXISTS", RECORD])? == 0
                    {
                        return Ok(());
                    }
                }
                self.servers[node].command::<()>(&["DEL", RECORD])
            }
            FaultKind::Pause => {
                self.paused[node] = true;
                self.nodes()[node].pause()
            }
            FaultKind::KillConnections => kill_clients(self.nodes()[node]),
            other => Err(unknown(self, other)),
        }
    }

    fn heal(&mut self, kind: FaultKind, node: usize) -> Result<()> {
        match kind {
            FaultKind::Step => Ok(()),
            FaultKind::StepKilled => {
                for step in &self.steps {
                    step.killed.notify_one();
                }
                self.end();
                // The next administrator continues.
                self.step(false)
            }
            // The next step writes the record again.
            FaultKind::RecordLost => self.step(false),
            FaultKind::Pause => {
                self.paused[node] = false;
                self.nodes()[node].resume()
            }
            FaultKind::KillConnections => Ok(()),
            other => Err(unknown(self, other)),
        }
    }

    fn excuses(&self, kind: FaultKind) -> (Vec<Rule>, &'static str) {
        match kind {
            FaultKind::Step | FaultKind::StepKilled | FaultKind::RecordLost => (
                vec![Rule::Kept, Rule::Queue],
                "a hold that is in one store alone is lost in the hush, and waiters may go to the end of the queue",
            ),
            _ => (Vec::new(), ""),
        }
    }

    fn window(&self) -> u64 {
        WINDOW
    }

    fn forgets_after(&self) -> u64 {
        STALE_QUEUE
    }

    fn left(&mut self) -> Result<Vec<String>> {
        self.end();
        let wrong = std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(wrong) = wrong.into_iter().next() {
            return Err(Failure::new(wrong));
        }
        // A cluster has a counter for each slot.
        let permanent = |key: &str| key.starts_with(COUNTER) || key == RECORD;
        let mut left = keys_left(&self.servers, permanent)?;
        if let Some(cluster) = &self.cluster {
            left.extend(keys_left(cluster.nodes(), permanent)?);
        }
        Ok(left)
    }
}

impl Drop for Move {
    fn drop(&mut self) {
        for step in &self.steps {
            step.killed.notify_one();
        }
        self.end();
    }
}
