//! One run: a store, workers on it, harm, and the history that comes of it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use fencelock::{Client, Clock, LeaseKind, Order};
use fencelock_testbed::{Failure, Proxy, Result};

use crate::Relaunch;
use crate::beds::{Bed, JUMP};
use crate::crew::Crew;
use crate::harm::Harm;
use crate::history::{FORMAT, Fault, History, Promised};
use crate::nemesis::{Field, Plan};
use crate::own;
use crate::record::Record;
use crate::register::Resource;
use crate::worker::Job;

/// How long workers may take to open the store.
const START: Duration = Duration::from_secs(30);

/// Beside everything that is known to take time: how long a lock may take to be granted again after the last fault.
const RECOVERY: Duration = Duration::from_secs(15);

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) workers: u32,
    pub(crate) tasks: u32,
    pub(crate) names: u32,
    pub(crate) lasts: Duration,
    /// Ends earlier once there were so many grants.
    pub(crate) grants: Option<usize>,
    pub(crate) ttl: Duration,
    pub(crate) hold: Duration,
    /// Of 1000 holds, how many go on past their lease.
    pub(crate) overstay: u32,
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
    pub(crate) harms: Vec<Harm>,
    pub(crate) together: usize,
    pub(crate) pauses: (u64, u64),
}

/// Where to do it.
pub(crate) enum Place {
    /// On a store that was started here.
    Started(Box<dyn Bed>),
    /// On somebody's store.
    Store(String),
}

/// Runs, and returns what happened.
pub(crate) async fn run(place: Place, settings: Settings, relaunch: &Relaunch) -> Result<History> {
    let (bed, direct) = match place {
        Place::Started(bed) => {
            let direct = bed.url(&bed.ports());
            (Some(bed), direct)
        }
        Place::Store(url) => (None, url),
    };
    let client = open(&direct).await?;
    let promises = client.promises().clone();
    let ttl = settings.ttl.clamp(promises.min_ttl, promises.max_ttl);
    let run = format!("fencelock-torture/{}-{}", std::process::id(), settings.seed);
    let names: Vec<String> = (0..settings.names).map(|n| format!("{run}/{n}")).collect();
    let resource = Resource::start()
        .await
        .map_err(Failure::to("start the resource"))?;
    let record = Record::default();

    let mut proxies = Vec::new();
    let mut jobs = Vec::new();
    for worker in 0..settings.workers {
        let (url, before) = way(bed.as_deref(), &direct)?;
        proxies.push(before);
        jobs.push(Job {
            url,
            worker,
            life: 0,
            tasks: settings.tasks,
            seed: settings.seed,
            names: names.clone(),
            ttl_ms: ttl.as_millis() as u64,
            patience_ms: settings.patience.as_millis() as u64,
            overstay: settings.overstay,
            hold_us: settings.hold.as_micros() as u64,
            shared: promises.shared,
            resource: resource.port(),
        });
    }
    let crew = Crew::new(jobs, relaunch.clone(), record.clone());
    let mut window = Duration::from_millis(bed.as_ref().map_or(6000, |bed| bed.window()));
    let limits = promises.limits.iter();
    let limits: Vec<String> = limits.map(|limit| limit.what.clone()).collect();
    let mut bed = bed;
    if let Some(bed) = &mut bed {
        bed.hear(&limits);
    }
    let engine = bed
        .as_ref()
        .map_or(promises.engine, |bed| bed.name())
        .to_owned();
    let field = Field {
        bed,
        proxies,
        crew: crew.clone(),
        record: record.clone(),
        was_ahead: false,
        bound: promises.lease == LeaseKind::Connection,
    };
    let plan = Plan {
        harms: field.able(&settings.harms),
        seed: settings.seed,
        together: settings.together,
        pauses: settings.pauses,
        ttl,
    };
    if [Harm::ClockForward, Harm::ClockBack]
        .iter()
        .any(|harm| plan.harms.contains(harm))
    {
        // For so long a lease of the other time is too long.
        window += JUMP;
    }
    let mut history = History {
        format: FORMAT,
        engine,
        store: client.store(),
        seed: settings.seed,
        workers: settings.workers,
        tasks: settings.tasks,
        names,
        ttl: ttl.as_nanos() as u64,
        promised: Promised {
            fifo: promises.order == Order::Fifo,
            shared: promises.shared,
            clock: promises.clock.to_owned(),
            limits,
        },
        aftermath: (2 * ttl + window).as_nanos() as u64,
        recovery: (RECOVERY + 2 * ttl + window * settings.workers).as_nanos() as u64,
        ..History::default()
    };
    // Everything that waits for processes and threads, off the runtime.
    let times = settings.clone();
    let recovery = Duration::from_nanos(history.recovery);
    let names = history.names.clone();
    let telling = record.clone();
    let work = move || act(field, &plan, &times, recovery, names.len(), &telling);
    let acted = tokio::task::spawn_blocking(work).await;
    let (mut field, began, ended) = acted.map_err(Failure::to("run"))??;
    history.began = began;
    history.ended = ended;
    let befell = field.bed.as_mut().and_then(|bed| bed.befell());
    history.befell = befell
        .into_iter()
        .map(|(what, excuses, why)| Fault {
            what,
            whom: "the store".into(),
            from: began,
            to: ended,
            excuses,
            why: why.into(),
        })
        .collect();
    let forgets = field.bed.as_ref().map_or(0, |bed| bed.forgets_after());
    let wait = Duration::from_nanos(history.aftermath).max(Duration::from_millis(forgets));
    history.left = left(&client, &run, &mut field, wait).await;
    // Whatever it says, nothing depends on it any more.
    drop(client.close().await);
    let mut parts = record.parts();
    history.writes = parts.writes(resource.take());
    history.attempts = std::mem::take(&mut parts.attempts);
    history.claims = std::mem::take(&mut parts.claims);
    history.faults = std::mem::take(&mut parts.faults);
    history.troubles = std::mem::take(&mut parts.troubles);
    history.faults.sort_by_key(|fault| fault.from);
    Ok(history)
}

async fn open(url: &str) -> Result<Client> {
    let begin = Instant::now();
    loop {
        match fencelock::connect(url).await {
            Ok(client) => return Ok(client),
            // A server that was started a moment ago on a busy machine.
            Err(fencelock::Error::Unavailable { .. }) if begin.elapsed() < START => {}
            Err(error) => return Err(Failure::new(error.to_string())),
        }
    }
}

/// A worker's own way to the store: its URL, and the proxies on it.
fn way(bed: Option<&dyn Bed>, direct: &str) -> Result<(String, Vec<Proxy>)> {
    let Some(bed) = bed else {
        return own::way(direct);
    };
    let proxies = bed.ports().into_iter().map(Proxy::start);
    let proxies: Vec<Proxy> = proxies.collect::<Result<_>>()?;
    let ports: Vec<u16> = proxies.iter().map(Proxy::port).collect();
    Ok((bed.url(&ports), proxies))
}

/// Starts the workers, does harm for the time that was asked for, lets everything settle, and ends the workers.
fn act(
    mut field: Field,
    plan: &Plan,
    settings: &Settings,
    recovery: Duration,
    names: usize,
    record: &Record,
) -> Result<(Field, u64, u64)> {
    let crew = field.crew.clone();
    for worker in 0..crew.len() {
        crew.start(worker)?;
    }
    for worker in 0..crew.len() {
        crew.await_ready(worker, START)?;
    }
    let began = Clock::Boot.now().as_nanos();
    let (stop, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        let field = &mut field;
        scope.spawn(move || field.run(plan, &stopped));
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
    crew.finish(settings.patience + recovery);
    Ok((field, began, ended))
}

/// Waits until every lock was granted again after the last fault, or should have been.
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

/// What is left on the server once everything of before is over.
async fn left(client: &Client, run: &str, field: &mut Field, wait: Duration) -> Vec<String> {
    let until = Clock::Boot.now() + wait;
    loop {
        let mut left = Vec::new();
        match client.list(run).await {
            Ok(held) => left.extend(held.iter().map(|lock| format!("the lock {}", lock.name))),
            Err(error) => left.push(format!("no answer to the listing of locks: {error}")),
        }
        if let Some(bed) = &mut field.bed {
            match bed.left() {
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
