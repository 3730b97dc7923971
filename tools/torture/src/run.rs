//! One run: a store, its workers, the faults, and the resulting history.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use fencelock::{Client, Clock, LeaseKind, Order};
use fencelock_testbed::{Failure, Proxy, Result};

use crate::Relaunch;
use crate::external;
use crate::fault::FaultKind;
use crate::history::{FORMAT, Fault, History, Promised};
use crate::nemesis::{Plan, Targets};
use crate::record::Record;
use crate::register::Resource;
use crate::stores::{JUMP, TestStore};
use crate::worker::Job;
use crate::workers::Workers;

/// How long workers may take to open the store.
const START: Duration = Duration::from_secs(30);

/// How long a lock may take to be granted again after the last fault, in addition to the known times.
const RECOVERY: Duration = Duration::from_secs(15);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: u32,
    pub(crate) tasks: u32,
    pub(crate) names: u32,
    pub(crate) lasts: Duration,
    /// Ends the run earlier, after this many grants.
    pub(crate) grants: Option<usize>,
    pub(crate) ttl: Duration,
    pub(crate) hold: Duration,
    /// How many of 1000 holds continue past their lease.
    pub(crate) overstay: u32,
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
    pub(crate) faults: Vec<FaultKind>,
    pub(crate) together: usize,
    pub(crate) pauses: (u64, u64),
    /// Other programs that are workers, too.
    pub(crate) others: Vec<Relaunch>,
}

/// The store of a run.
pub(crate) enum Place {
    /// A store that was started here.
    Started(Box<dyn TestStore>),
    /// A store that was not started here.
    Store(String),
}

/// Runs, and returns what happened.
pub(crate) async fn run(place: Place, settings: Settings, relaunch: &Relaunch) -> Result<History> {
    let (mut store, url) = match place {
        Place::Started(store) => {
            let url = store.url(&store.ports());
            (Some(store), url)
        }
        Place::Store(url) => (None, url),
    };
    let client = open(&url).await?;
    let promises = client.promises();
    let limits: Vec<String> = promises.limits.iter().map(|l| l.what.clone()).collect();
    if let Some(store) = &mut store {
        store.note_limits(&limits);
    }
    let run = format!("fencelock-torture/{}-{}", std::process::id(), settings.seed);
    let mut history = blank(&client, store.as_deref(), &settings, &run, limits);
    let resource = Resource::start()
        .await
        .map_err(Failure::to("start the resource"))?;
    let record = Record::default();
    let (jobs, proxies) = jobs(store.as_deref(), &url, &settings, &history, resource.port())?;
    let own = std::iter::once(relaunch.clone());
    let programs = own.chain(settings.others.iter().cloned()).collect();
    let targets = Targets {
        store,
        proxies,
        workers: Workers::new(jobs, programs, record.clone()),
        record: record.clone(),
        was_ahead: false,
        bound: promises.lease == LeaseKind::Connection,
    };
    let plan = Plan {
        faults: targets.able(&settings.faults),
        seed: settings.seed,
        together: settings.together,
        pauses: settings.pauses,
        ttl: Duration::from_nanos(history.ttl),
    };
    allow_time(&mut history, &targets, &plan);
    // Waiting for processes and threads blocks, so it happens outside the runtime.
    let recovery = Duration::from_nanos(history.recovery);
    let (names, telling) = (history.names.len(), record.clone());
    let work = move || act(targets, &plan, &settings, recovery, names, &telling);
    let acted = tokio::task::spawn_blocking(work).await;
    let (mut targets, began, ended) = acted.map_err(Failure::to("run"))??;
    history.began = began;
    history.ended = ended;
    if let Some(store) = &mut targets.store {
        history.late = store.late();
    }
    history.befell = incident(&mut targets, began, ended).into_iter().collect();
    let forgets = targets.store.as_ref().map_or(0, |s| s.forgets_after());
    let wait = Duration::from_nanos(history.aftermath).max(Duration::from_millis(forgets));
    history.left = left(&client, &run, &mut targets, wait).await;
    // The run is over, so a failure to close the client does not matter.
    drop(client.close().await);
    collect(&mut history, &record, &resource);
    Ok(history)
}

/// The history before the run: what is to happen, on what store.
fn blank(
    client: &Client,
    store: Option<&dyn TestStore>,
    settings: &Settings,
    run: &str,
    limits: Vec<String>,
) -> History {
    let promises = client.promises();
    let ttl = settings.ttl.clamp(promises.min_ttl, promises.max_ttl);
    History {
        format: FORMAT,
        engine: store
            .map_or(promises.engine, |store| store.name())
            .to_owned(),
        store: client.store(),
        seed: settings.seed,
        workers: settings.workers,
        tasks: settings.tasks,
        names: (0..settings.names).map(|n| format!("{run}/{n}")).collect(),
        ttl: ttl.as_nanos() as u64,
        promised: Promised {
            fifo: promises.order == Order::Fifo,
            shared: promises.shared,
            clock: promises.clock.to_owned(),
            limits,
        },
        ..History::default()
    }
}

/// The job of each worker, and the proxies before it.
fn jobs(
    store: Option<&dyn TestStore>,
    direct: &str,
    settings: &Settings,
    history: &History,
    resource: u16,
) -> Result<(Vec<Job>, Vec<Vec<Proxy>>)> {
    let mut all = (Vec::new(), Vec::new());
    for worker in 0..settings.workers {
        let (url, proxies) = route(store, direct)?;
        all.0.push(Job {
            url,
            worker,
            life: 0,
            tasks: settings.tasks,
            seed: settings.seed,
            names: history.names.clone(),
            ttl_ms: history.ttl / 1_000_000,
            patience_ms: settings.patience.as_millis() as u64,
            overstay: settings.overstay,
            hold_us: settings.hold.as_micros() as u64,
            shared: history.promised.shared,
            resource,
        });
        all.1.push(proxies);
    }
    Ok(all)
}

/// Sets how long the consequences of a fault, and the recovery from it, may take.
fn allow_time(history: &mut History, targets: &Targets, plan: &Plan) {
    let window = targets.store.as_ref().map_or(6000, |store| store.window());
    let mut window = Duration::from_millis(window);
    let jumps = [FaultKind::ClockForward, FaultKind::ClockBack];
    if jumps.iter().any(|kind| plan.faults.contains(kind)) {
        // A lease that was granted by the wrong clock lasts longer by this jump.
        window += JUMP;
    }
    history.aftermath = (2 * plan.ttl + window).as_nanos() as u64;
    history.recovery = (RECOVERY + 2 * plan.ttl + window * history.workers).as_nanos() as u64;
}

/// What happened to the store without an injected fault, over the whole run.
fn incident(targets: &mut Targets, from: u64, to: u64) -> Option<Fault> {
    let (what, excuses, why) = targets.store.as_mut()?.incident()?;
    Some(Fault {
        what,
        whom: "the store".into(),
        from,
        to,
        excuses,
        why: why.into(),
    })
}

/// Adds what the workers, the resource and the nemesis have recorded.
fn collect(history: &mut History, record: &Record, resource: &Resource) {
    let mut parts = record.parts();
    history.writes = parts.writes(resource.take());
    history.attempts = std::mem::take(&mut parts.attempts);
    history.claims = std::mem::take(&mut parts.claims);
    history.faults = std::mem::take(&mut parts.faults);
    history.troubles = std::mem::take(&mut parts.troubles);
    history.faults.sort_by_key(|fault| fault.from);
}

async fn open(url: &str) -> Result<Client> {
    let begin = Instant::now();
    loop {
        match fencelock::connect(url).await {
            Ok(client) => return Ok(client),
            // The server may still be starting.
            Err(fencelock::Error::Unavailable { .. }) if begin.elapsed() < START => {}
            Err(error) => return Err(Failure::new(error.to_string())),
        }
    }
}

/// A worker's own route to the store: its URL, and its proxies.
fn route(store: Option<&dyn TestStore>, direct: &str) -> Result<(String, Vec<Proxy>)> {
    let Some(store) = store else {
        return external::route(direct);
    };
    let proxies = store.ports().into_iter().map(Proxy::start);
    let proxies: Vec<Proxy> = proxies.collect::<Result<_>>()?;
    let ports: Vec<u16> = proxies.iter().map(Proxy::port).collect();
    Ok((store.url(&ports), proxies))
}

/// Starts the workers, injects faults for the requested time, waits for the recovery, and ends the workers.
fn act(
    mut targets: Targets,
    plan: &Plan,
    settings: &Settings,
    recovery: Duration,
    names: usize,
    record: &Record,
) -> Result<(Targets, u64, u64)> {
    let workers = targets.workers.clone();
    for worker in 0..workers.len() {
        workers.start(worker)?;
    }
    for worker in 0..workers.len() {
        workers.await_ready(worker, START)?;
    }
    let began = Clock::Boot.now().as_nanos();
    let (stop, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        let targets = &mut targets;
        scope.spawn(move || targets.run(plan, &stopped));
        let begin = Instant::now();
        while begin.elapsed() < settings.lasts
            && settings
                .grants
                .is_none_or(|grants| record.grants() < grants)
        {
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(stop);
    });
    settle(record, names, recovery);
    let ended = Clock::Boot.now().as_nanos();
    workers.finish(settings.patience + recovery);
    Ok((targets, began, ended))
}

/// Waits until every lock was granted again after the last fault, or the time for that is over.
fn settle(record: &Record, names: usize, recovery: Duration) {
    let healed = Clock::Boot.now();
    loop {
        let served = {
            let parts = record.parts();
            let mut served = vec![false; names];
            for attempt in parts.attempts.iter().rev() {
                if attempt.granted.is_some_and(|at| at > healed.as_nanos()) {
                    served[attempt.name as usize] = true;
                }
            }
            served.into_iter().all(|served| served)
        };
        if served || Clock::Boot.now().since(healed) > recovery + Duration::from_secs(1) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What is left on the server after the run.
async fn left(client: &Client, run: &str, targets: &mut Targets, wait: Duration) -> Vec<String> {
    let until = Clock::Boot.now() + wait;
    loop {
        let mut left = Vec::new();
        match client.list(run).await {
            Ok(held) => left.extend(held.iter().map(|lock| format!("the lock {}", lock.name))),
            Err(error) => left.push(format!("no answer to the listing of locks: {error}")),
        }
        if let Some(store) = &mut targets.store {
            match store.left() {
                Ok(more) => left.extend(more),
                Err(error) => left.push(format!("no answer about what is left: {error}")),
            }
        }
        if left.is_empty() || Clock::Boot.now() > until {
            return left;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
