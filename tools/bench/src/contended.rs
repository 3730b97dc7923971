//! One contended lock, by tasks in several processes. In a closed loop, each task requests the lock again right after its
//! release. In a *drain*, all tasks queue, the holder releases, and each task holds the lock once.

use std::time::Duration;

use fencelock::{Clock, Result};
use serde_json::{Value, json};

use crate::bare::{Place, failed, ring};
use crate::bench::Bench;
use crate::contender::{Contender, Held, Who, engine};
#[cfg(feature = "peers")]
use crate::foreign::installed;
use crate::report::Section;
use crate::stats::{median, or_dash, percentile, rate, time};
use crate::worker::{Acquisition, Act, Job, Workers};

/// How long the loop runs before it counts, and how much longer for each client. In its first turns a client begins its sessions
/// and opens its watches, and many clients do that at the same time.
const WARM_UP: Duration = Duration::from_millis(300);
const WARM_UP_OF_ONE: Duration = Duration::from_millis(15);
const LONGEST_WARM_UP: Duration = Duration::from_secs(5);
/// How long commands are counted after the measurement of the loop.
const COUNTING: Duration = Duration::from_millis(300);

/// The results of one round. Times in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Round {
    per_s: f64,
    gap_p50: f64,
    gap_p99: f64,
    round_trip: Option<f64>,
    commands: Option<f64>,
    share: Option<f64>,
    longest_wait: f64,
}

/// The closed loop.
pub(crate) async fn measure_loop(bench: &Bench<'_>) -> Result<Section> {
    let mut section = Section {
        title: format!("Contended lock, closed loop, {}", engine(bench.url)?),
        note: "Waiters are spread over processes; each one requests the lock again as soon as it has released it; \
               medians over rounds. A gap lasts from the beginning of a release until the next holder knows of its \
               grant. A round trip is the median PING (PostgreSQL: SELECT 1) of the same run, or a write where there \
               is none. Commands: sent by clients per hand-off. The bare clients have no lock, but a fixed order: each \
               watches the key of the one before it, deletes its own when that is deleted, and puts it again. On MySQL, \
               each increases the number of the turn in a row, and wakes the next one. Share: the turns of the most \
               served waiter, divided by \
               those of the least served (inf: a waiter was never served). The run checks that tokens increase and \
               that holds do not overlap."
            .into(),
        head: vec![
            "waiters", "processes", "clients", "who", "hand-offs/s", "gap p50", "gap p99", "p50 in round trips",
            "p99 in round trips", "commands", "share", "longest wait",
        ],
        rows: Vec::new(),
        raw: Vec::new(),
    };
    for &waiters in &bench.args.waiters {
        for own_clients in bench.clients()? {
            let mut whos = whos(bench, own_clients)?;
            if own_clients && waiters >= ring::LEAST && ring::is_known(engine(bench.url)?) {
                whos.insert(0, Who::Bare);
            }
            let mut rounds = vec![Vec::new(); whos.len()];
            // In turn, so that a drift of the machine favours no contender.
            for _ in 0..bench.args.rounds {
                for (who, rounds) in whos.iter().zip(&mut rounds) {
                    rounds.push(one_loop(bench, *who, waiters, own_clients).await?);
                }
            }
            for (who, rounds) in whos.iter().zip(&rounds) {
                add(&mut section, bench, (waiters, own_clients, *who), rounds);
            }
        }
    }
    Ok(section)
}

/// The drain.
pub(crate) async fn measure_drain(bench: &Bench<'_>) -> Result<Section> {
    let mut section = Section {
        title: format!("Contended lock, drain, {}", engine(bench.url)?),
        note: "All waiters queue, then the holder releases and each takes the lock once; medians over rounds. This is \
               the fair figure for locks that poll: in a closed loop the task that releases such a lock gets it again."
            .into(),
        head: vec![
            "waiters", "processes", "clients", "who", "hand-offs/s", "gap p50", "gap p99", "p50 in round trips",
            "p99 in round trips", "longest wait",
        ],
        rows: Vec::new(),
        raw: Vec::new(),
    };
    for &waiters in &bench.args.drain_waiters {
        for own_clients in bench.clients()? {
            for who in whos(bench, own_clients)? {
                if !who.drains() {
                    continue;
                }
                let mut rounds = Vec::new();
                for _ in 0..bench.args.rounds {
                    rounds.push(one_drain(bench, who, waiters, own_clients).await?);
                }
                add(&mut section, bench, (waiters, own_clients, who), &rounds);
            }
        }
    }
    Ok(section)
}

/// The contenders. Each process of a peer has one client.
fn whos(bench: &Bench<'_>, own_clients: bool) -> Result<Vec<Who>> {
    #[cfg(feature = "peers")]
    if bench.args.peers && !own_clients && engine(bench.url)? == "redis" {
        let mut whos = vec![Who::Fencelock, Who::Rslock];
        whos.extend(installed().map(Who::Foreign));
        return Ok(whos);
    }
    #[cfg(feature = "etcd")]
    if !own_clients && engine(bench.url)? == "etcd" {
        let mut whos = vec![Who::Fencelock];
        #[cfg(feature = "peers")]
        if bench.args.peers {
            whos.push(Who::LockService);
        }
        if bench.args.concurrency.is_some() {
            whos.push(Who::Concurrency);
        }
        return Ok(whos);
    }
    #[cfg(feature = "zookeeper")]
    if bench.args.kazoo.is_some() && !own_clients && engine(bench.url)? == "zookeeper" {
        return Ok(vec![Who::Fencelock, Who::Kazoo]);
    }
    let _ = own_clients;
    let mut whos = vec![Who::Fencelock];
    whos.extend(bench.served());
    Ok(whos)
}

fn jobs(bench: &Bench<'_>, act: Act, who: Who, waiters: usize, own_clients: bool) -> Vec<Job> {
    let processes = bench.args.processes.min(waiters);
    let mut first = 0;
    let mut jobs = Vec::new();
    for process in 0..processes {
        let tasks = waiters / processes + usize::from(process < waiters % processes);
        jobs.push(Job {
            act,
            who,
            url: bench.url_of(who).into(),
            name: bench.name("contended"),
            tasks,
            first,
            names: 1,
            own_clients,
            // The next place in the ring is in another process.
            place: Place {
                at: process,
                of: waiters,
            },
            step: processes,
        });
        first += tasks;
    }
    jobs
}

async fn one_loop(bench: &Bench<'_>, who: Who, waiters: usize, own_clients: bool) -> Result<Round> {
    let round_trip = bench.round_trip(who).await?;
    let jobs = jobs(bench, Act::Loop, who, waiters, own_clients);
    let mut workers = Workers::start(bench, &jobs).await?;
    let clients = if own_clients {
        waiters
    } else {
        bench.args.processes
    };
    let each = WARM_UP_OF_ONE.saturating_mul(u32::try_from(clients).unwrap_or(u32::MAX));
    let from = Clock::Boot.now() + (WARM_UP + each).min(LONGEST_WARM_UP);
    // Long enough for many turns of each waiter.
    let longer = u32::try_from(waiters / 250).unwrap_or(1).max(1);
    let until = from + bench.args.period * longer;
    let counts = bench.counts()?;
    let extra = if counts { COUNTING } else { Duration::ZERO };
    workers.go(until + extra).await?;
    let reading = tokio::spawn(workers.done());
    Clock::Boot.sleep_until(until).await;
    let mut counted = None;
    if counts {
        let begun = Clock::Boot.now().as_nanos();
        let commands = bench.commands_within(COUNTING / 2).await?;
        counted = Some((begun, Clock::Boot.now().as_nanos(), commands));
    }
    let done = reading
        .await
        .map_err(|error| failed("the workers", error))??;
    let all = in_order(done.acquisitions)?;
    let mut round = judge(&all, from.as_nanos(), until.as_nanos())?;
    let mut served = vec![0u64; waiters];
    for a in within(&all, from.as_nanos(), until.as_nanos()) {
        served[a.task] += 1;
    }
    let (most, least) = (served.iter().max(), served.iter().min());
    round.share = most
        .zip(least)
        .map(|(most, least)| *most as f64 / *least as f64);
    round.commands = counted.and_then(|(from, until, commands)| {
        let handoffs = within(&all, from, until).count();
        (handoffs > 0).then(|| commands as f64 / handoffs as f64)
    });
    round.round_trip = round_trip;
    Ok(round)
}

async fn one_drain(
    bench: &Bench<'_>,
    who: Who,
    waiters: usize,
    own_clients: bool,
) -> Result<Round> {
    let round_trip = bench.round_trip(who).await?;
    let holder = Holder::take(bench, who, waiters).await?;
    let jobs = jobs(bench, Act::Once, who, waiters, own_clients);
    let mut workers = Workers::start(bench, &jobs).await?;
    workers.go(Clock::Boot.now()).await?;
    workers.all_waiting().await?;
    // Peers do not report their waiters. In this time each waiter has tried once, and their delays have spread.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = holder.release().await?;
    let leaving = held.leaving;
    let mut all = workers.done().await?.acquisitions;
    all.push(held);
    let all = in_order(all)?;
    let last = all.last().map_or(leaving, |a| a.granted);
    let mut round = judge(&all, leaving, last + 1)?;
    round.per_s = (all.len() - 1) as f64 / Duration::from_nanos(last - leaving).as_secs_f64();
    // Counted from the release. The time in the queue before it depends on the benchmark alone.
    round.longest_wait = (last - leaving) as f64;
    round.round_trip = round_trip;
    Ok(round)
}

/// The holder while the others queue: this process, or one of the contender's own.
enum Holder {
    Here(Box<Contender>, Held, usize),
    There(Workers),
}

impl Holder {
    async fn take(bench: &Bench<'_>, who: Who, task: usize) -> Result<Self> {
        let name = bench.name("contended");
        if who.runs_here() {
            let client = Contender::open(who, bench.url_of(who)).await?;
            let held = client.take(&name).await?;
            return Ok(Self::Here(Box::new(client), held, task));
        }
        let job = Job {
            act: Act::Hold,
            who,
            url: bench.url_of(who).into(),
            name,
            tasks: 1,
            first: task,
            names: 1,
            own_clients: false,
            place: Place::default(),
            step: 1,
        };
        let mut workers = Workers::start(bench, &[job]).await?;
        workers.go(Clock::Boot.now()).await?;
        workers.all_waiting().await?;
        Ok(Self::There(workers))
    }

    /// Releases the lock. Returns its time as an acquisition that ends with the release.
    async fn release(self) -> Result<Acquisition> {
        match self {
            Self::Here(client, held, task) => {
                let token = held.token();
                let leaving = Clock::Boot.now().as_nanos();
                held.release().await?;
                client.close().await?;
                Ok(Acquisition {
                    task,
                    asked: 0,
                    granted: leaving,
                    leaving,
                    token,
                })
            }
            Self::There(mut workers) => {
                workers.leave().await?;
                let held = workers.done().await?.acquisitions.pop();
                held.ok_or_else(|| failed("the holder", "it reports no hold"))
            }
        }
    }
}

/// Sorts by the instant of the grant, and checks the lock: holds must not overlap, and tokens must increase.
fn in_order(mut all: Vec<Acquisition>) -> Result<Vec<Acquisition>> {
    all.sort_by_key(|a| (a.granted, a.leaving));
    for pair in all.windows(2) {
        if pair[1].granted < pair[0].leaving {
            let why = format!("two held at once: {:?} and {:?}", pair[0], pair[1]);
            return Err(failed("the lock", why));
        }
        if pair[0].token != 0 && pair[1].token <= pair[0].token {
            let why = format!("tokens do not increase: {:?} and {:?}", pair[0], pair[1]);
            return Err(failed("the lock", why));
        }
    }
    Ok(all)
}

fn within(all: &[Acquisition], from: u64, until: u64) -> impl Iterator<Item = &Acquisition> {
    all.iter()
        .filter(move |a| (from..until).contains(&a.granted))
}

fn judge(all: &[Acquisition], from: u64, until: u64) -> Result<Round> {
    let count = within(all, from, until).count();
    let gaps: Vec<f64> = all
        .windows(2)
        .filter(|pair| (from..until).contains(&pair[1].granted) && pair[1].asked < pair[0].leaving)
        .map(|pair| (pair[1].granted - pair[0].leaving) as f64)
        .collect();
    let (Some(gap_p50), Some(gap_p99)) = (median(&gaps), percentile(&gaps, 99.0)) else {
        return Err(failed("the contended lock", "it was never handed over"));
    };
    let waits = within(all, from, until).map(|a| (a.granted - a.asked) as f64);
    Ok(Round {
        per_s: count as f64 / Duration::from_nanos(until - from).as_secs_f64(),
        gap_p50,
        gap_p99,
        longest_wait: waits.fold(0.0, f64::max),
        ..Round::default()
    })
}

fn add(
    section: &mut Section,
    bench: &Bench<'_>,
    (waiters, own_clients, who): (usize, bool, Who),
    rounds: &[Round],
) {
    let all =
        |of: fn(&Round) -> Option<f64>| -> Vec<f64> { rounds.iter().filter_map(of).collect() };
    let middle = |of| median(&all(of));
    let nanos = |value: f64| time(Duration::from_nanos(value as u64));
    let processes = bench.args.processes.min(waiters);
    let clients = if own_clients { waiters } else { processes };
    let in_round_trips = middle(|r| r.round_trip.map(|ping| r.gap_p99 / ping));
    let half_in_round_trips = middle(|r| r.round_trip.map(|ping| r.gap_p50 / ping));
    let figures = [
        ("hand-offs/s", or_dash(middle(|r| Some(r.per_s)), rate)),
        ("gap p50", or_dash(middle(|r| Some(r.gap_p50)), nanos)),
        ("gap p99", or_dash(middle(|r| Some(r.gap_p99)), nanos)),
        (
            "p50 in round trips",
            or_dash(half_in_round_trips, |n| format!("{n:.1}")),
        ),
        (
            "p99 in round trips",
            or_dash(in_round_trips, |n| format!("{n:.1}")),
        ),
        (
            "commands",
            or_dash(middle(|r| r.commands), |n| format!("{n:.2}")),
        ),
        ("share", or_dash(middle(|r| r.share), |n| format!("{n:.2}"))),
        (
            "longest wait",
            or_dash(middle(|r| Some(r.longest_wait)), nanos),
        ),
    ];
    let mut row = vec![
        waiters.to_string(),
        processes.to_string(),
        clients.to_string(),
        who.name().to_owned(),
    ];
    let shown = figures
        .into_iter()
        .filter(|(head, _)| section.head.contains(head));
    row.extend(shown.map(|(_, figure)| figure));
    section.rows.push(row);
    let raw: Vec<Value> = rounds
        .iter()
        .map(|r| {
            json!({
                "handoffs_per_s": r.per_s, "gap_p50_ns": r.gap_p50, "gap_p99_ns": r.gap_p99,
                "round_trip_p50_ns": r.round_trip, "commands_per_handoff": r.commands,
                "share_max_by_min": r.share, "longest_wait_ns": r.longest_wait,
            })
        })
        .collect();
    section.raw.push(json!({
        "waiters": waiters, "processes": processes, "clients": clients, "who": who.name(), "rounds": raw,
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(task: usize, granted: u64, leaving: u64, token: u64) -> Acquisition {
        let asked = 0;
        Acquisition {
            task,
            asked,
            granted,
            leaving,
            token,
        }
    }

    #[test]
    fn an_overlap_is_seen() {
        in_order(vec![held(1, 20, 30, 2), held(0, 10, 20, 1)]).unwrap();
        let error = in_order(vec![held(1, 19, 30, 2), held(0, 10, 20, 1)]).unwrap_err();
        assert!(error.to_string().contains("two held at once"), "{error}");
    }

    #[test]
    fn a_token_that_does_not_increase_is_seen() {
        let error = in_order(vec![held(1, 20, 30, 1), held(0, 10, 20, 1)]).unwrap_err();
        assert!(
            error.to_string().contains("tokens do not increase"),
            "{error}"
        );
    }

    #[test]
    fn gaps_run_from_release_to_grant() {
        let all = [held(0, 10, 20, 1), held(1, 25, 30, 2), held(0, 40, 41, 3)];
        let round = judge(&all, 0, 1_000_000_000).unwrap();
        assert_eq!((round.gap_p50, round.gap_p99), (5.0, 10.0));
        assert_eq!(round.per_s, 3.0);
        assert_eq!(round.longest_wait, 40.0);
    }
}
