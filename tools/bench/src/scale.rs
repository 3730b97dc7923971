//! How one client scales: many holds at once, many waiters for one name and for many names, many names in turn. It
//! shows what that costs the client and the servers, how many requests are sent, and with which error a load fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock::layers::{Counts, Meter};
use fencelock::{BootInstant, Client, Clock, Error, Guard, Result};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::bare::failed;
use crate::bench::Bench;
use crate::contender::engine;
use crate::processes::{Usage, cpu_time, forget_peak, peak, resident, started};
use crate::report::Section;
use crate::stats::{or_dash, rate, time};

/// The number of parallel requests of the loads that do not wait.
const TAKERS: usize = 64;

/// How long the waiters may take to join the store's queues.
const QUEUES_WITHIN: Duration = Duration::from_secs(60);

/// The measurement under way.
struct Run<'a> {
    bench: &'a Bench<'a>,
    url: &'a str,
    client: Client,
    meter: Arc<Meter>,
    section: Section,
}

/// The usage when a phase began.
struct Mark {
    at: BootInstant,
    cpu: Duration,
    memory: Option<u64>,
    servers: BTreeMap<String, Usage>,
    calls: Counts,
    commands: Option<u64>,
}

/// One phase of a load.
struct Phase<'a> {
    load: &'a str,
    size: usize,
    what: &'static str,
    /// How many locks were taken, waited for or released in the phase.
    done: usize,
    /// Whether the growth of memory in this phase counts for its locks.
    grows: bool,
    errors: Errors,
}

/// The errors of a phase, by their text.
#[derive(Debug, Default)]
struct Errors(BTreeMap<String, usize>);

impl Errors {
    fn note(&mut self, error: &Error) {
        *self.0.entry(error.to_string()).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        for (text, count) in other.0 {
            *self.0.entry(text).or_default() += count;
        }
    }

    /// The most frequent error, and how often it came.
    fn shown(&self) -> String {
        let most = self.0.iter().max_by_key(|(_, count)| **count);
        let all: usize = self.0.values().sum();
        // The lock's name differs in each text, so the first text counts for all.
        most.map_or_else(|| "-".into(), |(text, _)| format!("{all}: {text}"))
    }
}

/// Measures each load at each size.
pub(crate) async fn measure(bench: &Bench<'_>) -> Result<Section> {
    let url = bench.url_of(
        *bench
            .served()
            .first()
            .unwrap_or(&crate::contender::Who::Fencelock),
    );
    let meter = Arc::new(Meter::new(fencelock::open_engine(url).await?));
    let mut run = Run {
        bench,
        url,
        client: Client::new(meter.clone())?,
        meter,
        section: empty(url, bench)?,
    };
    // The buffers and tables of the first locks must not count as the cost of a hold.
    let (warm, errors) = run.take("warm", 1000).await?;
    if let Some((text, _)) = errors.0.first_key_value() {
        return Err(failed("the first 1,000 locks", text));
    }
    release(warm).await?;
    let args = bench.args;
    for &count in args.scale_holds.iter().filter(|count| **count > 0) {
        run.holds(count).await?;
    }
    for &count in args.scale_waiters.iter().filter(|count| **count > 0) {
        run.waiters("waiters for one name", 1, count).await?;
    }
    for &count in args.scale_spread.iter().filter(|count| **count > 0) {
        let names = args.scale_names.clamp(1, count);
        let load = format!("waiters for {} names", rate(names as f64));
        run.waiters(&load, names, count).await?;
    }
    for &count in args.scale_turns.iter().filter(|count| **count > 0) {
        run.turns(count).await?;
    }
    run.limits().await;
    run.client.close().await?;
    Ok(run.section)
}

fn empty(url: &str, bench: &Bench<'_>) -> Result<Section> {
    Ok(Section {
        title: format!("Scale of one client, {}", engine(url)?),
        note: format!(
            "One client with a ttl of {}; one row for each phase of a load. CPU is in seconds, of this process and of \
             the servers that it started; memory is the growth in bytes for each lock that was taken or waited for, \
             and the peak of the client. The next load uses memory again that a load has freed, so measure memory with \
             one load in a run. Calls: the client's calls to the store's engine per second; one renewal of many holds \
             counts as one. Commands: counted by the server, including those within scripts and those of this \
             measurement. Errors: how many, and the text of one.",
            time(bench.args.ttl)
        ),
        head: vec![
            "load",
            "size",
            "phase",
            "wall",
            "locks/s",
            "client CPU",
            "server CPU",
            "client bytes",
            "server bytes",
            "peak",
            "calls/s",
            "renewed/s",
            "commands/s",
            "errors",
        ],
        rows: Vec::new(),
        raw: Vec::new(),
    })
}

impl Run<'_> {
    /// Holds that many locks at once, and then is idle.
    async fn holds(&mut self, count: usize) -> Result<()> {
        let mut phase = Phase::of("holds", count);
        let mark = self.begin().await?;
        let (guards, errors) = self.take(&format!("holds-{count}"), count).await?;
        phase.ends("take", guards.len(), true, errors);
        self.end(&phase, &mark).await?;
        self.idle(&mut phase, &guards).await?;
        let mark = self.begin().await?;
        let released = guards.len();
        let errors = release(guards).await?;
        phase.ends("release", released, false, errors);
        self.end(&phase, &mark).await
    }

    /// Starts that many tasks that wait for locks of this client, is idle, and then gives each task its turn.
    async fn waiters(&mut self, load: &str, names: usize, count: usize) -> Result<()> {
        let mut phase = Phase::of(load, count);
        let what = format!("waiters-{names}-{count}");
        let (guards, errors) = self.take(&what, names).await?;
        if let Some((text, _)) = errors.0.first_key_value() {
            return Err(failed("the locks to wait for", text));
        }
        let mark = self.begin().await?;
        let mut waiting = JoinSet::new();
        for n in 0..count {
            let (client, ttl) = (self.client.clone(), self.bench.args.ttl);
            let name = format!("{}/{}", self.bench.name(&what), n % names);
            waiting.spawn(async move {
                let guard = client.lock(&name).ttl(ttl).await?;
                guard.release().await
            });
        }
        let queued = self.all_queued(&mark, names).await;
        phase.ends("queue", count, true, Errors::default());
        if !queued {
            let why = format!("not all waiters were queued within {QUEUES_WITHIN:?}");
            phase.errors.note(&failed("the waiters", why));
        }
        self.end(&phase, &mark).await?;
        self.idle(&mut phase, &guards).await?;
        let mark = self.begin().await?;
        let mut errors = release(guards).await?;
        let mut served = 0;
        while let Some(turn) = waiting.join_next().await {
            match turn.map_err(|error| failed("a task", error))? {
                Ok(_) => served += 1,
                Err(error) => errors.note(&error),
            }
        }
        phase.ends("hand on", served, false, errors);
        self.end(&phase, &mark).await
    }

    /// Waits until the first waiter for each name is in the store's queue. The other waiters are queued in this
    /// process.
    async fn all_queued(&self, mark: &Mark, names: usize) -> bool {
        let until = mark.at + QUEUES_WITHIN;
        while self.meter.counts().waited - mark.calls.waited < names as u64 {
            if Clock::Boot.now() > until {
                return false;
            }
            // The servers do the work meanwhile. A pause in this process costs them nothing.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        true
    }

    /// Takes and releases that many names, each once.
    async fn turns(&mut self, count: usize) -> Result<()> {
        let mut phase = Phase::of("names in turn", count);
        let mark = self.begin().await?;
        let mut takers = JoinSet::new();
        for taker in 0..TAKERS {
            let (client, prefix) = (self.client.clone(), self.bench.name("turns"));
            takers.spawn(async move {
                let (mut done, mut errors) = (0, Errors::default());
                for n in (taker..count).step_by(TAKERS) {
                    match turn(&client, &format!("{prefix}/{n}")).await {
                        Ok(()) => done += 1,
                        Err(error) => {
                            errors.note(&error);
                            break;
                        }
                    }
                }
                (done, errors)
            });
        }
        let (mut done, mut errors) = (0, Errors::default());
        while let Some(ended) = takers.join_next().await {
            let ended = ended.map_err(|error| failed("a task", error))?;
            done += ended.0;
            errors.add(ended.1);
        }
        phase.ends("take, release", done, true, errors);
        self.end(&phase, &mark).await
    }

    /// Requests more than a lock allows, and shows the errors.
    async fn limits(&mut self) {
        let promises = self.client.promises();
        let (shortest, longest) = (promises.min_ttl, promises.max_ttl);
        let name = self.bench.name("limits");
        let beyond = longest.saturating_add(Duration::from_secs(1));
        let asked = [
            ("a name of 513 bytes", "n".repeat(513), shortest),
            ("a shorter ttl", name.clone(), shortest / 2),
            ("a longer ttl", name, beyond),
        ];
        for (load, name, ttl) in asked {
            let shown = match self.client.try_lock(&name).ttl(ttl).await {
                Ok(_) => "none".to_owned(),
                Err(error) => error.to_string().replace(&"n".repeat(513), "n..."),
            };
            let mut row = vec![load.to_owned()];
            row.resize(self.section.head.len() - 1, "-".to_owned());
            self.section
                .raw
                .push(json!({ "load": load, "error": &shown }));
            row.push(shown);
            self.section.rows.push(row);
        }
    }

    /// Takes that many locks in parallel tasks. A task ends at its first error.
    async fn take(&self, what: &str, count: usize) -> Result<(Vec<Guard>, Errors)> {
        let mut takers = JoinSet::new();
        for taker in 0..TAKERS {
            let (client, ttl) = (self.client.clone(), self.bench.args.ttl);
            let prefix = self.bench.name(what);
            takers.spawn(async move {
                let (mut guards, mut errors) = (Vec::new(), Errors::default());
                for n in (taker..count).step_by(TAKERS) {
                    match client.try_lock(&format!("{prefix}/{n}")).ttl(ttl).await {
                        Ok(guard) => guards.push(guard),
                        Err(error) => {
                            errors.note(&error);
                            break;
                        }
                    }
                }
                (guards, errors)
            });
        }
        let (mut all, mut errors) = (Vec::with_capacity(count), Errors::default());
        while let Some(taken) = takers.join_next().await {
            let taken = taken.map_err(|error| failed("a task", error))?;
            all.extend(taken.0);
            errors.add(taken.1);
        }
        Ok((all, errors))
    }

    /// Is idle for a while. Requests in this time are renewals and repeated requests of waiters.
    async fn idle(&mut self, phase: &mut Phase<'_>, guards: &[Guard]) -> Result<()> {
        let mark = self.begin().await?;
        tokio::time::sleep(self.bench.args.scale_idle).await;
        let mut errors = Errors::default();
        for guard in guards.iter().filter(|guard| !guard.is_valid()) {
            errors.note(&failed(guard.name().as_str(), "its hold was lost"));
        }
        phase.ends("idle", 0, false, errors);
        self.end(phase, &mark).await
    }

    async fn begin(&self) -> Result<Mark> {
        forget_peak();
        Ok(Mark {
            commands: self.bench.commands_so_far().await?,
            servers: started(),
            calls: self.meter.counts(),
            memory: resident(),
            cpu: cpu_time(),
            at: Clock::Boot.now(),
        })
    }

    /// Writes the row of a phase that has ended.
    async fn end(&mut self, phase: &Phase<'_>, mark: &Mark) -> Result<()> {
        let used = Used::since(mark, &self.meter, self.bench.commands_so_far().await?);
        self.section.rows.push(phase.row(&used));
        self.section.raw.push(phase.to_json(&used));
        // Each phase takes a while, so show progress.
        if !self.bench.args.json {
            eprintln!("{}: {} {} {}", self.url, phase.load, phase.size, phase.what);
        }
        Ok(())
    }
}

/// What a phase has used.
struct Used {
    wall: Duration,
    cpu: Duration,
    servers: BTreeMap<String, (Duration, f64)>,
    memory: Option<f64>,
    peak: Option<u64>,
    calls: u64,
    renewed: u64,
    commands: Option<u64>,
}

impl Used {
    fn since(mark: &Mark, meter: &Meter, commands: Option<u64>) -> Self {
        let (wall, cpu) = (Clock::Boot.now().since(mark.at), cpu_time());
        let (now, then) = (meter.counts(), mark.calls);
        let sum = |counts: Counts| {
            counts.placed + counts.waited + counts.renew_calls + counts.withdrawn + counts.looked
        };
        let servers = started().into_iter().map(|(program, usage)| {
            let before = mark.servers.get(&program).copied().unwrap_or_default();
            let grown = usage.memory as f64 - before.memory as f64;
            (program, (usage.cpu.saturating_sub(before.cpu), grown))
        });
        let grown = |(after, before): (u64, u64)| after as f64 - before as f64;
        Self {
            wall,
            cpu: cpu.saturating_sub(mark.cpu),
            servers: servers.collect(),
            memory: resident().zip(mark.memory).map(grown),
            peak: peak(),
            calls: sum(now) - sum(then),
            renewed: now.renewed - then.renewed,
            commands: commands.zip(mark.commands).map(|(now, then)| now - then),
        }
    }

    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// A figure for each server, with its program's name if there are several.
    fn of_servers(&self, show: impl Fn(&(Duration, f64)) -> String) -> String {
        let only = self.servers.len() == 1;
        let figures = self.servers.iter().map(|(program, used)| match only {
            true => show(used),
            false => format!("{program} {}", show(used)),
        });
        let figures: Vec<String> = figures.collect();
        match figures.is_empty() {
            true => "-".into(),
            false => figures.join(", "),
        }
    }
}

impl<'a> Phase<'a> {
    fn of(load: &'a str, size: usize) -> Self {
        Self {
            load,
            size,
            what: "",
            done: 0,
            grows: false,
            errors: Errors::default(),
        }
    }

    fn ends(&mut self, what: &'static str, done: usize, grows: bool, errors: Errors) {
        (self.what, self.done) = (what, done);
        (self.grows, self.errors) = (grows, errors);
    }

    fn row(&self, used: &Used) -> Vec<String> {
        let done = self.done as f64;
        let each = |bytes: f64| format!("{:.0}", bytes / done.max(1.0));
        let seconds = |cpu: Duration| format!("{:.2}", cpu.as_secs_f64());
        let locks = (self.done > 0).then(|| used.per_s(self.done as u64));
        let own = used.memory.filter(|_| self.grows);
        vec![
            self.load.to_owned(),
            rate(self.size as f64),
            self.what.to_owned(),
            time(used.wall),
            or_dash(locks, rate),
            seconds(used.cpu),
            used.of_servers(|(cpu, _)| seconds(*cpu)),
            or_dash(own, each),
            match self.grows {
                true => used.of_servers(|(_, bytes)| each(*bytes)),
                false => "-".into(),
            },
            or_dash(used.peak, |bytes| format!("{} MB", bytes / 1_000_000)),
            rate(used.per_s(used.calls)),
            rate(used.per_s(used.renewed)),
            or_dash(used.commands, |commands| rate(used.per_s(commands))),
            self.errors.shown(),
        ]
    }

    fn to_json(&self, used: &Used) -> Value {
        let servers = used.servers.iter().map(|(program, (cpu, bytes))| {
            json!({ "program": program, "cpu_s": cpu.as_secs_f64(), "grown_bytes": bytes })
        });
        json!({
            "load": self.load, "size": self.size, "phase": self.what, "done": self.done,
            "wall_s": used.wall.as_secs_f64(), "client_cpu_s": used.cpu.as_secs_f64(),
            "servers": servers.collect::<Vec<_>>(), "client_grown_bytes": used.memory, "client_peak_bytes": used.peak,
            "calls": used.calls, "renewed": used.renewed, "commands": used.commands, "errors": self.errors.0,
        })
    }
}

async fn turn(client: &Client, name: &str) -> Result<()> {
    client.lock(name).await?.release().await.map(drop)
}

/// Releases all, a thousand at a time.
async fn release(guards: Vec<Guard>) -> Result<Errors> {
    let (mut guards, mut errors) = (guards.into_iter(), Errors::default());
    loop {
        let mut releasing = JoinSet::new();
        for guard in guards.by_ref().take(1000) {
            releasing.spawn(guard.release());
        }
        if releasing.is_empty() {
            return Ok(errors);
        }
        while let Some(released) = releasing.join_next().await {
            match released.map_err(|error| failed("a task", error))? {
                Ok(fencelock::Release::Released) => {}
                Ok(other) => errors.note(&failed("a release", format!("{other:?}"))),
                Err(error) => errors.note(&error),
            }
        }
    }
}
