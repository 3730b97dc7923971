//! Uncontended locks: each worker acquires and releases names of its own.

use std::time::Duration;

use fencelock::{BootInstant, Clock, Result};
use serde_json::json;

use crate::bare::{Place, failed};
use crate::bench::Bench;
use crate::contender::{Contender, Who, engine};
#[cfg(feature = "peers")]
use crate::foreign::installed;
use crate::report::Section;
use crate::stats::{median, or_dash, paired_ratio, rate};
use crate::worker::{Act, Job, Workers};

/// Measures each requested number of workers.
pub(crate) async fn measure(bench: &Bench<'_>) -> Result<Section> {
    let whos = contenders(bench)?;
    let mut section = Section {
        title: format!("Uncontended take and release, {}", engine(bench.url)?),
        note: "Pairs of take and release per second, each worker on names of its own over one connection per process; \
               medians over rounds. The ratio is the median of each round's ratio to the bare client."
            .into(),
        head: vec!["processes", "workers", "names", "who", "pairs/s", "of bare"],
        rows: Vec::new(),
        raw: Vec::new(),
    };
    for &workers in &bench.args.workers {
        let processes = bench.args.pair_processes;
        let names = bench.args.names.unwrap_or(workers * processes) / (workers * processes);
        if names == 0 {
            let why = "there must be at least one for each worker, or they would contend";
            let given = bench.args.names.unwrap_or_default().to_string();
            return Err(fencelock::Error::invalid("number of names", given, why));
        }
        let rates = rates(bench, &whos, workers, names).await?;
        for (at, who) in whos.iter().enumerate() {
            let ratio = match whos[0] {
                Who::Bare => paired_ratio(&rates[at], &rates[0]),
                _ => None,
            };
            let middle = median(&rates[at]).unwrap_or_default();
            section.rows.push(vec![
                processes.to_string(),
                (workers * processes).to_string(),
                (names * workers * processes).to_string(),
                who.name().into(),
                rate(middle),
                or_dash(ratio, |ratio| format!("{ratio:.2}")),
            ]);
            section.raw.push(json!({
                "processes": processes, "workers": workers * processes, "names": names * workers * processes,
                "who": who.name(), "pairs_per_s": middle, "of_bare": ratio, "rounds": rates[at],
            }));
        }
    }
    Ok(section)
}

/// Who takes part. The bare client is the first one, if there is one.
fn contenders(bench: &Bench<'_>) -> Result<Vec<Who>> {
    let mut whos = vec![Who::Fencelock];
    if bench.has_baseline()? {
        whos.insert(0, Who::Bare);
    }
    whos.extend(bench.served());
    #[cfg(feature = "peers")]
    if bench.args.peers && matches!(engine(bench.url)?, "redis" | "redlock") {
        whos.push(Who::Rslock);
        if engine(bench.url)? == "redlock" && crate::node_redlock::installed().is_some() {
            whos.push(Who::NodeRedlock);
        }
        if engine(bench.url)? == "redis" {
            whos.extend(installed().map(Who::Foreign));
        }
    }
    Ok(whos)
}

/// All rounds: the pairs per second of each contender in each round.
async fn rates(
    bench: &Bench<'_>,
    whos: &[Who],
    workers: usize,
    names: usize,
) -> Result<Vec<Vec<f64>>> {
    let mut rates = vec![Vec::new(); whos.len()];
    for round in 0..bench.args.rounds {
        for turn in 0..whos.len() {
            // The order is reversed in each round, so that a drift of the machine favours no contender.
            let at = if round % 2 == 0 {
                turn
            } else {
                whos.len() - 1 - turn
            };
            let rate = one(bench, whos[at], workers, names).await?;
            rates[at].push(rate);
        }
    }
    Ok(rates)
}

/// One round of one contender: pairs per second.
async fn one(bench: &Bench<'_>, who: Who, workers: usize, names: usize) -> Result<f64> {
    let job = |process: usize| Job {
        act: Act::Pairs,
        who,
        url: bench.url_of(who).into(),
        name: bench.name("pairs"),
        tasks: workers,
        first: process * workers,
        names,
        own_clients: false,
        place: Place::default(),
        step: 1,
    };
    let (begun, pairs, ended);
    if bench.args.pair_processes == 1 && who.runs_here() {
        let contender = Contender::open(who, bench.url_of(who)).await?;
        // Load scripts and seed counters before the measurement.
        let warm = Clock::Boot.now() + Duration::from_millis(50);
        contender.pairs(job(0).names_of_tasks(), warm).await?;
        begun = Clock::Boot.now();
        let until = begun + bench.args.period;
        pairs = contender.pairs(job(0).names_of_tasks(), until).await?;
        ended = Clock::Boot.now();
        contender.close().await?;
    } else {
        let jobs: Vec<Job> = (0..bench.args.pair_processes).map(job).collect();
        let mut workers = Workers::start(bench, &jobs).await?;
        begun = Clock::Boot.now();
        workers.go(begun + bench.args.period).await?;
        let done = workers.done().await?;
        pairs = done.pairs;
        ended = BootInstant::from_nanos(done.ended);
    }
    if pairs == 0 {
        return Err(failed(who.name(), "it made no pair at all"));
    }
    // Until the last worker has ended, not the period: the last pair of each worker ends later.
    let took = ended.since(begun).max(Duration::from_nanos(1));
    Ok(pairs as f64 / took.as_secs_f64())
}

/// The rate of one worker of the bare client, to compare hand-offs with.
pub(crate) async fn bare_rate(bench: &Bench<'_>) -> Result<f64> {
    one(bench, Who::Bare, 1, 1).await
}
