//! Many locks held at once: what their renewals cost the client.

use fencelock::{Client, Clock, Guard, Release, Result};
use serde_json::json;
use tokio::task::JoinSet;

use crate::bare::failed;
use crate::bench::Bench;
use crate::contender::engine;
use crate::processes::{cpu_time, resident};
use crate::report::Section;
use crate::stats::{or_dash, rate, time};

/// The number of parallel requests while the locks are acquired.
const TAKERS: usize = 64;

/// Acquires the locks, holds them for longer than a ttl, and releases them.
pub(crate) async fn measure(bench: &Bench<'_>) -> Result<Section> {
    let (count, ttl) = (bench.args.holds, bench.args.ttl);
    let client = fencelock::connect(bench.url).await?;
    // The buffers and tables of the first locks must not count as the cost of a hold.
    let warm = take(bench, &client, count.min(1000), "warm").await?;
    release(warm).await?;
    let before = resident();
    let begun = Clock::Boot.now();
    let guards = take(bench, &client, count, "holds").await?;
    let taking = Clock::Boot.now().since(begun);
    let bytes = resident()
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    let per_hold = bytes.map(|bytes| bytes as f64 / count.max(1) as f64);

    let period = ttl + ttl / 3;
    let (cpu, begun) = (cpu_time(), Clock::Boot.now());
    tokio::time::sleep(period).await;
    let took = Clock::Boot.now().since(begun);
    let cpu = cpu_time().saturating_sub(cpu).as_secs_f64() / took.as_secs_f64();
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    let not_ours = release(guards).await?;
    client.close().await?;

    Ok(Section {
        title: format!("Many holds, {}", engine(bench.url)?),
        note: format!(
            "One client holds that many locks for {}, which is longer than their ttl, and renews them. CPU: of this \
             process, in percent of one core. Memory: the growth of its resident set, including guards and names. \
             Lost: holds that were not valid at the end, or not ours when released.",
            time(period)
        ),
        head: vec![
            "holds",
            "ttl",
            "CPU",
            "bytes per hold",
            "lost",
            "taken per s",
        ],
        rows: vec![vec![
            rate(count as f64),
            time(ttl),
            format!("{:.1} %", cpu * 100.0),
            or_dash(per_hold, |bytes| format!("{bytes:.0}")),
            lost.max(not_ours).to_string(),
            rate(count as f64 / taking.as_secs_f64()),
        ]],
        raw: vec![json!({
            "holds": count, "ttl_ms": ttl.as_millis() as u64, "held_ms": took.as_millis() as u64, "cpu_of_a_core": cpu,
            "bytes_per_hold": per_hold, "lost": lost.max(not_ours), "taking_ms": taking.as_millis() as u64,
        })],
    })
}

async fn take(bench: &Bench<'_>, client: &Client, count: usize, what: &str) -> Result<Vec<Guard>> {
    let mut takers = JoinSet::new();
    for taker in 0..TAKERS {
        let (client, prefix, ttl) = (client.clone(), bench.name(what), bench.args.ttl);
        takers.spawn(async move {
            let mut guards = Vec::with_capacity(count / TAKERS + 1);
            for n in (taker..count).step_by(TAKERS) {
                guards.push(client.try_lock(&format!("{prefix}/{n}")).ttl(ttl).await?);
            }
            Ok::<_, fencelock::Error>(guards)
        });
    }
    let mut all = Vec::with_capacity(count);
    while let Some(guards) = takers.join_next().await {
        all.extend(guards.map_err(|error| failed("a task", error))??);
    }
    Ok(all)
}

/// How many locks were no longer held.
async fn release(guards: Vec<Guard>) -> Result<usize> {
    let mut guards = guards.into_iter();
    let mut not_ours = 0;
    loop {
        let mut releasing = JoinSet::new();
        for guard in guards.by_ref().take(1000) {
            releasing.spawn(guard.release());
        }
        if releasing.is_empty() {
            return Ok(not_ours);
        }
        while let Some(released) = releasing.join_next().await {
            let released = released.map_err(|error| failed("a task", error))??;
            not_ours += usize::from(!matches!(released, Release::Released));
        }
    }
}
