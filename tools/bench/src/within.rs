//! Hand-off inside one process: tasks that share a client and request one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencelock::{Client, Clock, Result};
use serde_json::json;
use tokio::task::JoinSet;

use crate::bare::failed;
use crate::bench::Bench;
use crate::contender::engine;
use crate::pairs;
use crate::report::Section;
use crate::stats::{median, or_dash, paired_ratio, rate};

/// Measures hand-offs, and for comparison one uncontended worker of the bare client.
pub(crate) async fn measure(bench: &Bench<'_>) -> Result<Section> {
    let mut section = Section {
        title: format!("Hand-off inside one process, {}", engine(bench.url)?),
        note: "Tasks that share one client take one lock in a closed loop; medians over rounds. For comparison, one \
               uncontended worker of the bare client: a hand-off through the store would cost at least that much. The \
               run checks that tokens increase. Share: the turns of the most served task, divided by those of the \
               least served."
            .into(),
        head: vec!["tasks", "hand-offs/s", "share", "bare pairs/s", "ratio"],
        rows: Vec::new(),
        raw: Vec::new(),
    };
    for &tasks in &bench.args.tasks {
        let (mut ours, mut shares, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.args.rounds {
            if bench.has_baseline()? {
                bare.push(pairs::bare_rate(bench).await?);
            }
            let client = fencelock::connect(bench.url).await?;
            let (per_s, share) = one(bench, &client, tasks).await?;
            client.close().await?;
            ours.push(per_s);
            shares.push(share);
        }
        let ratio = paired_ratio(&ours, &bare);
        section.rows.push(vec![
            tasks.to_string(),
            or_dash(median(&ours), rate),
            or_dash(median(&shares), |share| format!("{share:.2}")),
            or_dash(median(&bare), rate),
            or_dash(ratio, |ratio| format!("{ratio:.1}")),
        ]);
        section.raw.push(json!({
            "tasks": tasks, "handoffs_per_s": ours, "share_max_by_min": shares, "bare_pairs_per_s": bare,
            "of_bare": ratio,
        }));
    }
    Ok(section)
}

/// One round: hand-offs per second, and the ratio of the most to the fewest turns of a task.
async fn one(bench: &Bench<'_>, client: &Client, tasks: usize) -> Result<(f64, f64)> {
    let name = bench.name("within");
    run(client, &name, tasks, Duration::from_millis(50)).await?;
    let (served, took) = run(client, &name, tasks, bench.args.period).await?;
    let (most, least) = (served.iter().max(), served.iter().min());
    let share = most
        .zip(least)
        .map_or(0.0, |(most, least)| *most as f64 / *least as f64);
    Ok((served.iter().sum::<u64>() as f64 / took, share))
}

/// How many turns each task had, and the duration in seconds.
async fn run(
    client: &Client,
    name: &str,
    tasks: usize,
    period: Duration,
) -> Result<(Vec<u64>, f64)> {
    let last = Arc::new(AtomicU64::new(0));
    // All tasks are queued before the first one is granted. A task that does not wait would not let the others begin.
    let gate = client.lock(name).await?;
    let settling = Duration::from_millis(5);
    let until = Clock::Boot.now() + settling + period;
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let (client, name, last) = (client.clone(), name.to_owned(), Arc::clone(&last));
        running.spawn(async move {
            let mut served = 0;
            while Clock::Boot.now() < until || served == 0 {
                let guard = client.lock(&name).await?;
                let token = guard.token().get();
                let before = last.swap(token, Ordering::SeqCst);
                if before >= token {
                    let why = format!("tokens do not increase: {token} was granted after {before}");
                    return Err(failed("the lock", why));
                }
                guard.release().await?;
                served += 1;
            }
            Ok(served)
        });
    }
    tokio::time::sleep(settling).await;
    let begun = Clock::Boot.now();
    gate.release().await?;
    let mut all = Vec::new();
    while let Some(served) = running.join_next().await {
        all.push(served.map_err(|error| failed("a task", error))??);
    }
    Ok((all, Clock::Boot.now().since(begun).as_secs_f64()))
}
