//! Several worker processes: this program starts itself again as workers, sends each its job on stdin, lets all begin
//! together, and reads their results from their stdout.
//!
//! | parent | worker |
//! | --- | --- |
//! | the job, a line of JSON | connects, then `ready` |
//! | `go UNTIL` (nanoseconds of the boot clock) | `waiting` once all its tasks have requested the lock |
//! | `leave` to a worker that holds | |
//! | | one line for each acquisition, or `pairs COUNT`; then `end` |

use std::process::Stdio;
use std::time::Duration;

use fencelock::{BootInstant, Clock, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::bare::ring::Entry;
use crate::bare::{Place, failed};
use crate::bench::{Bench, Relaunch};
use crate::contender::{Contender, Who};

/// What a worker's tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Acquire and release names of their own.
    Pairs,
    /// Acquire and release one name again and again.
    Loop,
    /// Acquire and release one name once.
    Once,
    /// Acquire one name, and release it when told.
    Hold,
}

/// One worker's job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) act: Act,
    pub(crate) who: Who,
    pub(crate) url: String,
    /// The lock, or the prefix of the names of locks.
    pub(crate) name: String,
    /// The number of tasks.
    pub(crate) tasks: usize,
    /// The number of the first task, over all workers.
    pub(crate) first: usize,
    /// The number of names that each task locks in turn.
    pub(crate) names: usize,
    /// Whether each task has its own client, and so its own connection.
    pub(crate) own_clients: bool,
    /// The place of the first task in the ring of bare clients.
    pub(crate) place: Place,
    /// How many places further the next task has its own.
    pub(crate) step: usize,
}

/// One acquisition, in nanoseconds of the boot clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acquisition {
    /// The task.
    pub(crate) task: usize,
    /// When it sent the request.
    pub(crate) asked: u64,
    /// When it learned that it held.
    pub(crate) granted: u64,
    /// When it began to release.
    pub(crate) leaving: u64,
    /// Its token; 0 if there are none.
    pub(crate) token: u64,
}

/// The results of all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) pairs: u64,
    /// When the last worker was done, in nanoseconds of the boot clock. Processes need more time to end.
    pub(crate) ended: u64,
}

impl Job {
    fn to_json(&self) -> Value {
        let act = match self.act {
            Act::Pairs => "pairs",
            Act::Loop => "loop",
            Act::Once => "once",
            Act::Hold => "hold",
        };
        json!({
            "act": act, "who": self.who.name(), "url": self.url, "name": self.name, "tasks": self.tasks,
            "first": self.first, "names": self.names, "own_clients": self.own_clients,
            "at": self.place.at, "of": self.place.of, "step": self.step,
        })
    }

    fn from_json(text: &str) -> Result<Self> {
        let job: Value =
            serde_json::from_str(text).map_err(|error| failed("a worker's job", error))?;
        let missing = |key: &str| failed("a worker's job", format!("{key} is missing: {text}"));
        let string = |key: &str| job[key].as_str().ok_or_else(|| missing(key));
        let number = |key: &str| {
            let number = job[key].as_u64().ok_or_else(|| missing(key))?;
            usize::try_from(number).map_err(|_| missing(key))
        };
        Ok(Self {
            act: match string("act")? {
                "pairs" => Act::Pairs,
                "loop" => Act::Loop,
                "once" => Act::Once,
                _ => return Err(missing("act")),
            },
            who: Who::named(string("who")?)?,
            url: string("url")?.into(),
            name: string("name")?.into(),
            tasks: number("tasks")?,
            first: number("first")?,
            names: number("names")?,
            own_clients: job["own_clients"]
                .as_bool()
                .ok_or_else(|| missing("own_clients"))?,
            place: Place {
                at: number("at")?,
                of: number("of")?,
            },
            step: number("step")?,
        })
    }

    /// The names of each task.
    pub(crate) fn names_of_tasks(&self) -> Vec<Vec<String>> {
        let names = |task: usize| {
            let name = |n: usize| format!("{}/{}/{n}", self.name, self.first + task);
            (0..self.names).map(name).collect()
        };
        (0..self.tasks).map(names).collect()
    }
}

/// Worker processes that are connected and wait for their start.
pub(crate) struct Workers {
    workers: Vec<Worker>,
}

struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Workers {
    /// Starts one process for each job and waits until all are connected.
    pub(crate) async fn start(bench: &Bench<'_>, jobs: &[Job]) -> Result<Self> {
        let mut workers = Vec::new();
        for job in jobs {
            let relaunch = &program(bench, job.who)?;
            let started = Command::new(&relaunch.program)
                .args(&relaunch.args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn();
            let mut child = started.map_err(|error| {
                failed(
                    "a worker",
                    format!("{}: {error}", relaunch.program.display()),
                )
            })?;
            let stdout = child
                .stdout
                .take()
                .ok_or_else(|| failed("a worker", "it has no stdout"))?;
            let lines = BufReader::new(stdout).lines();
            let mut worker = Worker { child, lines };
            worker.tell(&job.to_json().to_string()).await?;
            workers.push(worker);
        }
        for worker in &mut workers {
            worker.expect("ready").await?;
        }
        Ok(Self { workers })
    }

    /// Starts all workers. They end after `until`.
    pub(crate) async fn go(&mut self, until: BootInstant) -> Result<()> {
        let word = format!("go {}", until.as_nanos());
        for worker in &mut self.workers {
            worker.tell(&word).await?;
        }
        Ok(())
    }

    /// Tells the workers that hold to release.
    pub(crate) async fn leave(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.tell("leave").await?;
        }
        Ok(())
    }

    /// Waits until every task has asked for its lock.
    pub(crate) async fn all_waiting(&mut self) -> Result<()> {
        for worker in &mut self.workers {
            worker.expect("waiting").await?;
        }
        Ok(())
    }

    /// Reads the results of all workers until they have ended.
    pub(crate) async fn done(self) -> Result<Done> {
        let mut reading = JoinSet::new();
        for worker in self.workers {
            reading.spawn(worker.finish());
        }
        let mut all = Done::default();
        while let Some(done) = reading.join_next().await {
            let done = done.map_err(|error| failed("a worker", error))??;
            all.acquisitions.extend(done.acquisitions);
            all.pairs += done.pairs;
            all.ended = all.ended.max(done.ended);
        }
        Ok(all)
    }
}

/// The program to start as a worker.
fn program(bench: &Bench<'_>, who: Who) -> Result<Relaunch> {
    #[cfg(feature = "peers")]
    if let Who::Foreign(foreign) = who {
        let why = "it is not installed; run tools/interop/setup.sh";
        let installed = foreign.program();
        let (program, args) = installed.ok_or_else(|| failed(foreign.name(), why))?;
        return Ok(Relaunch { program, args });
    }
    #[cfg(feature = "etcd")]
    if let (Who::Concurrency, Some(program)) = (who, &bench.args.concurrency) {
        return Ok(Relaunch {
            program: program.clone(),
            args: Vec::new(),
        });
    }
    #[cfg(feature = "zookeeper")]
    if let (Who::Kazoo, Some(python)) = (who, &bench.args.kazoo) {
        return Ok(Relaunch {
            program: python.clone(),
            args: vec!["-c".into(), include_str!("../peers/kazoo_worker.py").into()],
        });
    }
    let _ = who;
    Ok(bench.relaunch.clone())
}

impl Worker {
    async fn tell(&mut self, line: &str) -> Result<()> {
        let gone = || failed("a worker", "it has closed its input");
        let stdin = self.child.stdin.as_mut().ok_or_else(gone)?;
        let text = format!("{line}\n");
        let told = stdin.write_all(text.as_bytes()).await;
        told.map_err(|error| failed("a worker", error))
    }

    async fn line(&mut self) -> Result<String> {
        let line = self.lines.next_line().await;
        match line.map_err(|error| failed("a worker", error))? {
            Some(line) => Ok(line),
            None => Err(failed("a worker", "it ended early; its error is on stderr")),
        }
    }

    async fn expect(&mut self, word: &str) -> Result<()> {
        match self.line().await? {
            line if line == word => Ok(()),
            line => Err(failed(
                "a worker",
                format!("it wrote {line:?} instead of {word:?}"),
            )),
        }
    }

    async fn finish(mut self) -> Result<Done> {
        let mut done = Done::default();
        loop {
            let line = self.line().await?;
            let mut words = line.split(' ');
            let first = words.next();
            let numbers: Result<Vec<u64>, _> = words.map(str::parse).collect();
            match (first, numbers.as_deref()) {
                (Some("end"), _) => break,
                (Some("waiting"), _) => {}
                (Some("pairs"), Ok([count])) => done.pairs += count,
                (Some("held"), Ok([task, asked, granted, leaving, token])) => {
                    done.acquisitions.push(Acquisition {
                        task: *task as usize,
                        asked: *asked,
                        granted: *granted,
                        leaving: *leaving,
                        token: *token,
                    });
                }
                _ => return Err(failed("a worker", format!("it wrote {line:?}"))),
            }
        }
        done.ended = Clock::Boot.now().as_nanos();
        let ended = self.child.wait().await;
        ended.map_err(|error| failed("a worker", error))?;
        Ok(done)
    }
}

/// Runs a worker process: reads its job from stdin, does it, and writes the results to stdout.
///
/// # Errors
/// Errors of the store, and [`fencelock::Error::Internal`] if the parent has ended.
pub async fn run_worker() -> Result<()> {
    let job = Job::from_json(&read_line().await?)?;
    let clients = if job.own_clients { job.tasks } else { 1 };
    let mut contenders = Vec::with_capacity(clients);
    for _ in 0..clients {
        contenders.push(Contender::open(job.who, &job.url).await?);
    }
    let mut ring = Vec::new();
    if job.act == Act::Loop && job.who == Who::Bare {
        ring = join(&job, &contenders).await?;
    }
    println!("ready");
    let go = read_line().await?;
    let until = go.strip_prefix("go ").and_then(|nanos| nanos.parse().ok());
    let until = until.ok_or_else(|| failed("a worker", format!("got {go:?} instead of go")))?;
    let until = BootInstant::from_nanos(until);
    match job.act {
        Act::Pairs => {
            let pairs = contenders[0].pairs(job.names_of_tasks(), until).await?;
            println!("pairs {pairs}");
        }
        Act::Hold => return Err(failed("a worker", "a holder has no job of this kind")),
        Act::Loop if !ring.is_empty() => print!("{}", go_round(&job, ring, until).await?),
        Act::Loop | Act::Once => print!("{}", contend(&job, &contenders, until).await?),
    }
    println!("end");
    Ok(())
}

/// All tasks request one lock. Returns the acquisitions.
async fn contend(job: &Job, contenders: &[Contender], until: BootInstant) -> Result<String> {
    let once = job.act == Act::Once;
    let mut tasks = JoinSet::new();
    for task in 0..job.tasks {
        let contender = contenders[task % contenders.len()].clone();
        let (name, task) = (job.name.clone(), job.first + task);
        tasks.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let asked = Clock::Boot.now().as_nanos();
                let held = contender.take(&name).await?;
                let granted = Clock::Boot.now().as_nanos();
                let token = held.token();
                let leaving = Clock::Boot.now();
                held.release().await?;
                seen.push(Acquisition {
                    task,
                    asked,
                    granted,
                    leaving: leaving.as_nanos(),
                    token,
                });
                if once || leaving >= until {
                    return Ok::<_, fencelock::Error>(seen);
                }
            }
        });
    }
    // Each task runs once before this task runs again, so each is queued.
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    println!("waiting");
    told(tasks).await
}

/// Each bare client in its place of the ring.
async fn join(job: &Job, contenders: &[Contender]) -> Result<Vec<Entry>> {
    let mut ring = Vec::new();
    let mut place = job.place;
    for contender in contenders {
        ring.push(Entry::join(contender, &job.name, place).await?);
        place.at += job.step;
    }
    for entry in &mut ring {
        entry.watch().await?;
    }
    Ok(ring)
}

/// The turn goes round the ring. Returns the turns.
async fn go_round(job: &Job, ring: Vec<Entry>, until: BootInstant) -> Result<String> {
    let mut tasks = JoinSet::new();
    for (task, mut entry) in ring.into_iter().enumerate() {
        let task = job.first + task;
        tasks.spawn(async move {
            let mut seen = Vec::new();
            loop {
                let asked = Clock::Boot.now().as_nanos();
                let token = entry.take().await?;
                let granted = Clock::Boot.now().as_nanos();
                let leaving = Clock::Boot.now();
                entry.release().await?;
                seen.push(Acquisition {
                    task,
                    asked,
                    granted,
                    leaving: leaving.as_nanos(),
                    token,
                });
                if leaving >= until {
                    return Ok::<_, fencelock::Error>(seen);
                }
            }
        });
    }
    println!("waiting");
    told(tasks).await
}

/// What the tasks have acquired, as lines.
async fn told(mut tasks: JoinSet<Result<Vec<Acquisition>>>) -> Result<String> {
    let mut text = String::new();
    while let Some(seen) = tasks.join_next().await {
        for a in seen.map_err(|error| failed("a task", error))?? {
            let Acquisition {
                task,
                asked,
                granted,
                leaving,
                token,
            } = a;
            text += &format!("held {task} {asked} {granted} {leaving} {token}\n");
        }
    }
    Ok(text)
}

/// A line from the parent, read on a thread that may block.
async fn read_line() -> Result<String> {
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    };
    let line = tokio::task::spawn_blocking(read).await;
    let line = line.map_err(|error| failed("a worker", error))?;
    let line = line.map_err(|error| failed("a worker", error))?;
    match line.trim_end() {
        "" => Err(failed("a worker", "its parent has ended")),
        line => Ok(line.to_owned()),
    }
}
