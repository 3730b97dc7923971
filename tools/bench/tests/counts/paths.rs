//! The paths that are counted, walked by a process that runs under callgrind.
//!
//! Each is walked three times: once to grow tables and load scripts, then N times, then three times as often. The
//! difference between the last two has neither start-up nor end.

use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock::engine::{Claim, ClaimIds, Engine, HeldClaim, Leave, Renewal, Standing};
use fencelock::{Client, Clock, LockName, Memory, Observer, Token, open_engine};
use tokio::task::JoinSet;

use crate::failed::Failed;

/// One path at one store.
pub(crate) struct Path {
    /// As in the file of expected counts.
    pub(crate) name: &'static str,
    /// What one operation is.
    pub(crate) operation: &'static str,
    /// How many operations one time is.
    operations: u64,
    /// How many times make a count that stays the same.
    times: u64,
}

impl Path {
    /// The operations by which the longer walk is longer.
    pub(crate) const fn difference(&self) -> u64 {
        2 * self.times * self.operations
    }
}

/// Tasks that work side by side on locks of their own.
const WORKERS: u64 = 64;
/// Tasks that want one lock.
const TASKS: u64 = 16;
/// Locks that are held at once.
const HOLDS: u64 = 1000;

/// In the order in which they are walked.
pub(crate) const PATHS: [Path; 8] = [
    path("memory: one worker", "take and release", 1, 400),
    path("memory: 64 workers", "take and release", WORKERS, 10),
    path("memory: hand-off", "hand-off", TASKS, 40),
    path("memory: renewals", "renewal", HOLDS, 2),
    path("redis: one worker", "take and release", 1, 200),
    path("redis: 64 workers", "take and release", WORKERS, 10),
    path("redis: hand-off", "hand-off", TASKS, 40),
    path("redis: renewals", "renewal", HOLDS, 2),
];

const fn path(name: &'static str, operation: &'static str, operations: u64, times: u64) -> Path {
    Path {
        name,
        operation,
        operations,
        times,
    }
}

/// The name of the function at which callgrind writes what it has counted, for a pattern.
pub(crate) const BOUNDARY: &str = "*counts_boundary*";

/// Where counts begin and end.
#[inline(never)]
fn counts_boundary(part: u64) {
    black_box(part);
}

/// Walks all paths.
pub(crate) fn walk(url: &str) -> Result<(), Failed> {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all();
        builder
    };
    // The clock stands still, and jumps to the next renewal when all tasks wait for it.
    let paused = runtime().start_paused(true).build()?;
    paused.block_on(walk_memory())?;
    runtime().build()?.block_on(walk_redis(url))
}

async fn walk_memory() -> Result<(), Failed> {
    let clock = Clock::Tokio(tokio::time::Instant::now());
    let renewed = Arc::new(Renewed::default());
    let memory = Arc::new(Memory::with_clock(clock));
    let client = Client::builder(memory)
        .observer(Arc::clone(&renewed) as Arc<dyn Observer>)
        .build()?;
    counted(&PATHS[0], |times| pairs(&client, 1, times)).await?;
    counted(&PATHS[1], |times| pairs(&client, WORKERS, times)).await?;
    counted(&PATHS[2], |times| hand_offs(&client, times)).await?;
    let mut guards = Vec::new();
    for n in 0..HOLDS {
        guards.push(client.lock(&format!("counts/hold/{n}")).await?);
    }
    counted(&PATHS[3], |times| renewals(&renewed, times)).await?;
    for guard in guards {
        guard.release().await?;
    }
    Ok(client.close().await?)
}

async fn walk_redis(url: &str) -> Result<(), Failed> {
    let client = fencelock::connect(url).await?;
    counted(&PATHS[4], |times| pairs(&client, 1, times)).await?;
    counted(&PATHS[5], |times| pairs(&client, WORKERS, times)).await?;
    counted(&PATHS[6], |times| hand_offs(&client, times)).await?;
    client.close().await?;
    // By the engine alone: when the client renews depends on the time.
    let engine = open_engine(url).await?;
    let held = hold(&*engine).await?;
    counted(&PATHS[7], |times| renew(&*engine, &held, times)).await?;
    for held in &held {
        engine.withdraw(&held.claim, Leave::Release).await?;
    }
    Ok(engine.close().await?)
}

/// Walks a path for a while, then so often, then three times as often.
async fn counted<F>(path: &Path, walk: impl Fn(u64) -> F) -> Result<(), Failed>
where
    F: Future<Output = Result<(), Failed>>,
{
    for (part, times) in [path.times, path.times, 3 * path.times]
        .into_iter()
        .enumerate()
    {
        walk(times).await?;
        counts_boundary(part as u64);
    }
    Ok(())
}

/// Each worker takes and releases a lock of its own so often.
async fn pairs(client: &Client, workers: u64, times: u64) -> Result<(), Failed> {
    let mut running = JoinSet::new();
    for worker in 0..workers {
        let client = client.clone();
        running.spawn(async move {
            let name = format!("counts/pair/{worker}");
            for _ in 0..times {
                client.lock(&name).await?.release().await?;
            }
            Ok::<_, fencelock::Error>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Tasks of this process hand one lock to each other, each so often.
async fn hand_offs(client: &Client, times: u64) -> Result<(), Failed> {
    let name = "counts/hand-off";
    // All tasks are queued before the first is granted.
    let gate = client.lock(name).await?;
    let mut running = JoinSet::new();
    for _ in 0..TASKS {
        let client = client.clone();
        running.spawn(async move {
            for _ in 0..times {
                client.lock(name).await?.release().await?;
            }
            Ok::<_, fencelock::Error>(())
        });
    }
    tokio::task::yield_now().await;
    gate.release().await?;
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// How many renewals the client has made.
#[derive(Debug, Default)]
struct Renewed(AtomicU64);

impl Observer for Renewed {
    fn renewed(&self, kept: usize, _: usize, _: usize) {
        self.0.fetch_add(kept as u64, Ordering::SeqCst);
    }
}

/// Lets the time pass until all that is held was renewed so often.
async fn renewals(renewed: &Renewed, times: u64) -> Result<(), Failed> {
    let until = renewed.0.load(Ordering::SeqCst) + HOLDS * times;
    while renewed.0.load(Ordering::SeqCst) < until {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    match renewed.0.load(Ordering::SeqCst) {
        all if all == until => Ok(()),
        all => Err(format!("{} renewals too many", all - until).into()),
    }
}

/// Claims that hold.
async fn hold(engine: &dyn Engine) -> Result<Vec<HeldClaim>, Failed> {
    let ids = ClaimIds::new()?;
    let mut held = Vec::new();
    for n in 0..HOLDS {
        let name = LockName::new(&format!("counts/hold/{n}"))?;
        let claim = Claim::new(ids.next(), "counts", name).wait(false);
        let token: Token = match engine.place(&claim).await? {
            Standing::Held(grant) => grant.tokens.first,
            standing => return Err(format!("{} is not free: {standing:?}", claim.name).into()),
        };
        held.push(HeldClaim::new(claim, token));
    }
    Ok(held)
}

/// Renews all of them so often.
async fn renew(engine: &dyn Engine, held: &[HeldClaim], times: u64) -> Result<(), Failed> {
    for _ in 0..times {
        let renewals = engine.renew(held).await;
        let kept = |renewal: &&Renewal| matches!(renewal, Renewal::Kept { .. });
        if renewals.iter().filter(kept).count() < held.len() {
            return Err("a hold was lost".into());
        }
    }
    Ok(())
}
