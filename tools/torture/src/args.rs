//! The command line of `torture`, and what it does.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fencelock::parse_duration;
use serde_json::json;
use tokio::task::JoinSet;

use crate::history::History;
use crate::run::{Place, Settings};
use crate::{FaultKind, Relaunch, Verdict, Violation, Whom, check, report, run, scenario, stores};

/// The command line of this crate's own program.
#[derive(Debug, clap::Parser)]
#[command(
    name = "fencelock-torture",
    about = "Inject faults into a store and check what its clients believed"
)]
struct Program {
    /// The store, if none is started
    #[arg(long, value_name = "URL", default_value = "sqlite:")]
    store: String,

    #[command(flatten)]
    args: Args,
}

/// The program for the tests and for the table of docs/torture-results.md.
pub async fn program() -> ExitCode {
    let Program { store, args } = clap::Parser::parse();
    match command(&args, &store, &[]).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("fencelock-torture: {error}");
            ExitCode::from(69)
        }
    }
}

/// The options of `fencelock torture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Start a store of this kind, and inject faults into its servers, too. Without this option only the clients of the
    /// store of --store and their connections have faults
    #[arg(long, value_name = "ENGINE", conflicts_with_all = ["check", "list"])]
    start: Option<String>,

    /// The duration of the run
    #[arg(long, value_name = "DUR", default_value = "20s")]
    time: String,

    /// End earlier, after this many grants
    #[arg(long, value_name = "N")]
    grants: Option<usize>,

    /// The number of worker processes
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,

    /// The number of tasks in each process
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    tasks: u32,

    /// The number of locks
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    names: u32,

    /// The ttl of the locks
    #[arg(long, value_name = "DUR", default_value = "1s")]
    ttl: String,

    /// The maximum duration of most holds
    #[arg(long, value_name = "DUR", default_value = "3ms")]
    hold: String,

    /// Another program to run as a worker, with its arguments after spaces. Its processes alternate with torture's own;
    /// docs/torture.md has its protocol. May be repeated
    #[arg(long, value_name = "PROGRAM")]
    with: Vec<String>,

    /// How many of 1000 holds continue past the end of their lease without a renewal
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000))]
    overstay: u32,

    /// The faults, separated by commas; `all` for all that the store supports, `none` for none
    #[arg(long, value_name = "FAULTS", default_value = "all")]
    faults: String,

    /// The maximum number of faults at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    together: usize,

    /// The seed of the random numbers [default: a new one, which is printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Print the history and the verdict as JSON
    #[arg(long)]
    json: bool,

    /// Write a page with the timeline of every worker
    #[arg(long, value_name = "FILE")]
    html: Option<String>,

    /// Check a history that --json has printed, instead of a new run
    #[arg(long, value_name = "FILE")]
    check: Option<String>,

    /// Run each fault alone and then all together, on the store of --start or on every kind, and print a table
    #[arg(long, conflicts_with_all = ["check", "scenario", "json", "html"])]
    table: bool,

    /// Replace the table of this page, between `<!-- table -->` and `<!-- end of the table -->`, with that of --table
    #[arg(
        long,
        value_name = "FILE",
        requires = "table",
        conflicts_with = "start"
    )]
    into: Option<String>,

    /// How many stores --table runs at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,

    /// Show an accident of home-made locks on a real server, side by side with fencelock; `all` for all accidents
    #[arg(long, value_name = "NAME", conflicts_with_all = ["start", "check"])]
    scenario: Option<String>,

    /// List the stores that can be started, the faults and the scenarios
    #[arg(long)]
    list: bool,

    /// Be a worker process
    #[arg(long, hide = true)]
    worker: bool,
}

/// Why there is no verdict.
#[derive(Debug)]
pub enum Failed {
    /// Bad usage.
    Usage(String),
    /// An error of the store.
    Store(fencelock::Error),
    /// Something else.
    Other(String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(why) | Self::Other(why) => f.write_str(why),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failed {}

impl From<fencelock::Error> for Failed {
    fn from(error: fencelock::Error) -> Self {
        Self::Store(error)
    }
}

impl From<fencelock_testbed::Failure> for Failed {
    fn from(failure: fencelock_testbed::Failure) -> Self {
        Self::Other(failure.to_string())
    }
}

/// Runs the command: prints the verdict, and returns whether every promise was kept. `subcommand` are the arguments with
/// which this program calls this function again.
///
/// # Errors
/// If there is no verdict.
pub async fn command(args: &Args, store: &str, subcommand: &[&str]) -> Result<bool, Failed> {
    if args.worker {
        let worked = crate::run_worker().await;
        return worked
            .map(|()| true)
            .map_err(|error| Failed::Other(format!("a worker: {error}")));
    }
    if args.list {
        list();
        return Ok(true);
    }
    if let Some(name) = &args.scenario {
        return tell_scenarios(name).await;
    }
    if args.table {
        return table(args, subcommand).await;
    }
    let history = match &args.check {
        Some(file) => read(file)?,
        None => make(args, store, subcommand).await?,
    };
    let verdict = check(&history);
    tell(args, &history, &verdict)?;
    Ok(verdict.holds() && history.troubles.is_empty())
}

/// True if every promise was kept in every run.
async fn table(args: &Args, subcommand: &[&str]) -> Result<bool, Failed> {
    let begin = Instant::now();
    let relaunch = relaunch(subcommand)?;
    let wanted = |word: &&str| args.start.as_deref().is_none_or(|start| start == *word);
    let mut kinds = stores::kinds()
        .map(|(word, _)| word)
        .filter(wanted)
        .enumerate();
    let mut running = JoinSet::new();
    let mut sum = report::table::Sum::default();
    let mut finished = BTreeMap::new();
    println!("{}", report::table::HEAD);
    loop {
        while running.len() < args.jobs.max(1)
            && let Some((place, kind)) = kinds.next()
        {
            let (args, relaunch) = (args.clone(), relaunch.clone());
            running.spawn(async move { (place, rows(kind, args, relaunch).await) });
        }
        let Some(done) = running.join_next().await else {
            break;
        };
        let (place, rows) = done.map_err(|error| Failed::Other(error.to_string()))?;
        for (row, verdict) in rows? {
            println!("{row}");
            sum.add(&verdict);
            finished.entry(place).or_insert_with(Vec::new).push(row);
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    let sum_up = format!("On {cores} cores, in {minutes:.0} minutes: {sum}.");
    println!("\n{sum_up}");
    if let Some(file) = &args.into {
        let failed = |why: &dyn fmt::Display| Failed::Other(format!("{file}: {why}"));
        let page = fs::read_to_string(file).map_err(|error| failed(&error))?;
        let rows: Vec<String> = finished.into_values().flatten().collect();
        let table = format!("{sum_up}\n\n{}\n{}\n", report::table::HEAD, rows.join("\n"));
        let page = report::table::place(&page, &table)
            .ok_or_else(|| failed(&"it has no marks for a table"))?;
        fs::write(file, page).map_err(|error| failed(&error))?;
    }
    Ok(sum.holds())
}

/// The rows of one kind of store: each fault alone, then all together.
async fn rows(
    kind: &'static str,
    args: Args,
    relaunch: Relaunch,
) -> Result<Vec<(String, Verdict)>, Failed> {
    let (ports, servers) = {
        let store = stores::start(kind, &relaunch)?;
        (store.ports(), store.faults())
    };
    let able = |kind: &FaultKind| match kind.whom() {
        Whom::Server => servers.contains(kind),
        Whom::Network => !ports.is_empty(),
        Whom::Client => true,
    };
    let alone = FaultKind::ALL
        .into_iter()
        .filter(able)
        .map(FaultKind::as_str);
    let mut rows = Vec::new();
    for fault in alone.chain(["all"]) {
        let args = Args {
            faults: fault.to_owned(),
            ..args.clone()
        };
        // A failure of one run must not end the others.
        let ran = match stores::start(kind, &relaunch) {
            Ok(store) => run::run(Place::Started(store), args.settings()?, &relaunch).await,
            Err(failure) => Err(failure),
        };
        let history = ran.unwrap_or_else(|failure| History {
            troubles: vec![failure.to_string()],
            ..History::default()
        });
        let mut verdict = check(&history);
        if !verdict.holds() || !history.troubles.is_empty() {
            eprint!("{}", report::text::text(&history, &verdict));
        }
        for trouble in &history.troubles {
            verdict.violations.push(Violation::incomplete(trouble));
        }
        rows.push((report::table::row(kind, fault, &verdict), verdict));
    }
    Ok(rows)
}

/// True if every recipe failed and this library did not.
async fn tell_scenarios(wanted: &str) -> Result<bool, Failed> {
    let names: Vec<_> = scenario::all().map(|scenario| scenario.name).collect();
    let names: Vec<_> = names
        .into_iter()
        .filter(|name| wanted == "all" || wanted == *name)
        .collect();
    if names.is_empty() {
        let why = format!("there is no scenario {wanted:?}; --list prints them");
        return Err(Failed::Usage(why));
    }
    let mut as_expected = true;
    for name in names {
        let outcome = scenario::run(name).await?;
        println!("{outcome}");
        as_expected &= outcome.is_as_expected();
    }
    Ok(as_expected)
}

fn list() {
    println!("the stores (--start):");
    for (word, what) in stores::kinds() {
        println!("  {word:<16} {what}");
    }
    println!("the faults (--faults):");
    println!("  {}", FaultKind::ALL.map(FaultKind::as_str).join(" "));
    println!("the scenarios (--scenario):");
    for scenario in scenario::all() {
        println!("  {:<16} {}", scenario.name, scenario.about);
    }
}

fn read(file: &str) -> Result<History, Failed> {
    let failed = |error: &dyn fmt::Display| Failed::Usage(format!("{file}: {error}"));
    let text = fs::read_to_string(file).map_err(|error| failed(&error))?;
    let mut value: serde_json::Value = serde_json::from_str(&text).map_err(|e| failed(&e))?;
    let history = match value.get_mut("history") {
        Some(history) => history.take(),
        None => value,
    };
    let history: History = serde_json::from_value(history).map_err(|error| failed(&error))?;
    if history.format != crate::history::FORMAT {
        return Err(failed(&format!(
            "it has the format {}, and this version reads {}",
            history.format,
            crate::history::FORMAT
        )));
    }
    Ok(history)
}

/// How to start this program as a worker.
fn relaunch(subcommand: &[&str]) -> Result<Relaunch, Failed> {
    let program = std::env::current_exe()
        .map_err(|error| Failed::Other(format!("finding this program: {error}")))?;
    let words = subcommand.iter().copied().chain(["--worker"]);
    let args = words.map(str::to_owned).collect();
    Ok(Relaunch { program, args })
}

/// A program and its arguments.
fn program_of(text: &str) -> Relaunch {
    let mut words = text.split_whitespace();
    Relaunch {
        program: words.next().unwrap_or_default().into(),
        args: words.map(str::to_owned).collect(),
    }
}

async fn make(args: &Args, store: &str, subcommand: &[&str]) -> Result<History, Failed> {
    let settings = args.settings()?;
    let relaunch = relaunch(subcommand)?;
    let place = match &args.start {
        Some(word) => {
            if stores::kinds().all(|(known, _)| known != word) {
                let known: Vec<_> = stores::kinds().map(|(word, _)| word).collect();
                let known = known.join(", ");
                return Err(Failed::Usage(format!(
                    "{word:?} cannot be started; the stores are {known}"
                )));
            }
            Place::Started(stores::start(word, &relaunch)?)
        }
        None => {
            // A bad store is reported with its own error.
            let client = fencelock::connect(store).await?;
            client.close().await?;
            Place::Store(store.to_owned())
        }
    };
    Ok(run::run(place, settings, &relaunch).await?)
}

impl Args {
    fn settings(&self) -> Result<Settings, Failed> {
        let time =
            |what, text: &str| -> Result<Duration, Failed> { Ok(parse_duration(what, text)?) };
        let faults = match self.faults.as_str() {
            "all" => FaultKind::ALL.into(),
            "none" => Vec::new(),
            list => {
                let faults = list.split(',').map(str::parse);
                faults.collect::<Result<_, _>>().map_err(Failed::Usage)?
            }
        };
        Ok(Settings {
            workers: self.workers,
            tasks: self.tasks,
            names: self.names,
            lasts: time("--time", &self.time)?,
            grants: self.grants,
            ttl: time("--ttl", &self.ttl)?,
            hold: time("--hold", &self.hold)?,
            overstay: self.overstay,
            patience: Duration::from_secs(20),
            seed: self.seed.unwrap_or_else(|| fastrand::u64(0..1 << 32)),
            faults,
            together: self.together.max(1),
            pauses: (100, 700),
            others: self.with.iter().map(|text| program_of(text)).collect(),
        })
    }
}

fn tell(args: &Args, history: &History, verdict: &Verdict) -> Result<(), Failed> {
    if args.json {
        println!("{}", json!({"verdict": verdict, "history": history}));
    } else {
        print!("{}", report::text::text(history, verdict));
    }
    if let Some(file) = &args.html {
        let page = report::html::page(history, verdict);
        fs::write(file, page).map_err(|error| Failed::Other(format!("{file}: {error}")))?;
    }
    Ok(())
}
