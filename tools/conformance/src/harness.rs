//! Runs the list of cases on every subject, and reports as Rust's own test harness does.
//!
//! Takes the arguments that `cargo test` passes on: names or parts of names to run, `--exact`, `--skip`, `--list`,
//! `--test-threads`.

use std::any::Any;
use std::collections::VecDeque;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use fencelock::Promises;
use tokio::runtime::{Builder, Runtime};

use crate::case::{Case, Needs};
use crate::cases::cases;
use crate::ctx::Ctx;
use crate::subject::Subject;

/// How long a case may take before it counts as hung.
const LIMIT: Duration = Duration::from_secs(200);

/// How many cases run at once by default: they mostly wait.
const THREADS: usize = 8;

/// How many busy cases run at once.
const BUSY_THREADS: usize = 2;

#[derive(Debug)]
struct Arguments {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    threads: usize,
}

struct Test<'a> {
    subject: &'a dyn Subject,
    promises: Promises,
    case: &'static Case,
}

impl Test<'_> {
    fn name(&self) -> String {
        name_of(self.subject, self.case)
    }
}

fn name_of(subject: &dyn Subject, case: &Case) -> String {
    format!("{}::{}", subject.name(), case.name)
}

/// The main function of a test program. `worker` is the binary `fencelock-conformance-worker`.
#[must_use]
pub fn main(subjects: &[&dyn Subject], worker: &Path) -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(64);
        }
    };
    let begin = Instant::now();
    let mut failed = Vec::new();
    let mut tests = Vec::new();
    // Open only the subjects that are needed, all at once: most of this time goes into starting servers.
    let needed = |subject: &&&dyn Subject| {
        let cases = cases();
        let mut names = cases.iter().map(|case| name_of(**subject, case));
        names.any(|name| arguments.wants(&name))
    };
    let promised: Vec<_> = std::thread::scope(|scope| {
        let asked = subjects.iter().filter(needed).map(|subject| {
            let asked = scope.spawn(|| Promised::ask(*subject));
            (*subject, asked)
        });
        let asked: Vec<_> = asked.collect();
        let promised = asked.into_iter().map(|(subject, asked)| {
            let panicked = |panic: Box<dyn Any + Send>| Err(text_of(&*panic));
            (subject, asked.join().unwrap_or_else(panicked))
        });
        promised.collect()
    });
    for (subject, promised) in promised {
        match promised {
            Ok(promised) => tests.extend(list(subject, &promised)),
            Err(why) => failed.push((format!("{}::open", subject.name()), why)),
        }
    }
    let listed = tests.len();
    tests.retain(|test| arguments.wants(&test.name()));
    if arguments.list {
        for test in &tests {
            println!("{}: test", test.name());
        }
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", tests.len() + failed.len());
    for (name, why) in &failed {
        println!("test {name} ... FAILED\n{why}");
    }
    let filtered = listed - tests.len();
    let count = tests.len();
    let (busy, together): (Vec<_>, Vec<_>) = tests.into_iter().partition(|test| test.case.busy);
    for (tests, threads) in [
        (together, arguments.threads),
        (busy, arguments.threads.min(BUSY_THREADS)),
    ] {
        failed.extend(run_all(tests, threads, worker));
    }
    report(count, &failed, filtered, begin.elapsed())
}

/// The cases for a subject. Prints which ones are left out, and why.
fn list<'a>(subject: &'a dyn Subject, promised: &Promised) -> Vec<Test<'a>> {
    let (mut tests, mut unpromised, mut unneeded) = (Vec::new(), Vec::new(), Vec::new());
    for case in cases() {
        let met = match case.needs {
            Needs::Store => true,
            Needs::Processes => subject.spans_processes(),
            Needs::Server => subject.has_server(),
        };
        let promises = promised.to(case);
        if !met {
            unneeded.push(case.name);
        } else if !(case.promised)(promises) {
            unpromised.push(case.name);
        } else {
            let promises = promises.clone();
            tests.push(Test {
                subject,
                promises,
                case,
            });
        }
    }
    let say = |names: &[&str], why: &str| {
        if !names.is_empty() {
            eprintln!("{}: {why}: {}", subject.name(), names.join(", "));
        }
    };
    say(&unpromised, "does not promise");
    say(&unneeded, "has no server, or not for several processes");
    tests
}

fn runtime(name: &str) -> Runtime {
    // Tasks can panic, too.
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).thread_name(name).enable_all();
    builder.build().expect("the system has threads")
}

/// The promises of a subject. A server for one case may be configured to remember more.
struct Promised {
    store: Promises,
    server: Option<Promises>,
}

impl Promised {
    fn ask(subject: &dyn Subject) -> Result<Self, String> {
        runtime(subject.name()).block_on(async {
            let ask = async |server| {
                let store = subject.open(server).await;
                let store = store.map_err(|error| error.to_string())?;
                let client = store.connect().await.map_err(|error| error.to_string())?;
                Ok::<_, String>(client.promises().clone())
            };
            let store = ask(false).await?;
            let server = if subject.has_server() {
                Some(ask(true).await?)
            } else {
                None
            };
            Ok(Self { store, server })
        })
    }

    fn to(&self, case: &Case) -> &Promises {
        let server = self.server.as_ref().filter(|_| case.needs == Needs::Server);
        server.unwrap_or(&self.store)
    }
}

/// Runs tests, a number of them at once. Returns the failures.
fn run_all(tests: Vec<Test<'_>>, threads: usize, worker: &Path) -> Vec<(String, String)> {
    let todo = Mutex::new(VecDeque::from(tests));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(test) = { todo.lock().unwrap().pop_front() } {
                    let name = test.name();
                    let begin = Instant::now();
                    let outcome = run(test.subject, &test.promises, test.case, worker);
                    let took = begin.elapsed().as_secs_f64();
                    let word = if outcome.is_ok() { "ok" } else { "FAILED" };
                    println!("test {name} ... {word} <{took:.3}s>");
                    if let Err(why) = outcome {
                        failed.lock().unwrap().push((name, why));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// Runs one case on a subject, on a thread and a runtime of its own, so that a panic is a result and names its case.
///
/// # Errors
/// Why the case failed.
pub fn run(
    subject: &dyn Subject,
    promises: &Promises,
    case: &'static Case,
    worker: &Path,
) -> Result<(), String> {
    let name = name_of(subject, case);
    let work = || {
        let runtime = runtime(&name);
        let outcome = runtime.block_on(async {
            let store = subject.open(case.needs == Needs::Server).await;
            let ctx = Ctx {
                case: case.name,
                store: store.map_err(|error| error.to_string())?,
                promises: promises.clone(),
                worker: worker.to_owned(),
                claim_window: subject.claim_window(),
            };
            let ended = tokio::time::timeout(LIMIT, (case.run)(ctx)).await;
            ended.map_err(|_| format!("not over after {LIMIT:?}"))
        });
        // Not by a drop, which would wait for what a failed case still blocks.
        runtime.shutdown_timeout(Duration::from_secs(1));
        outcome
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.clone());
        let thread = thread.spawn_scoped(scope, work);
        let thread = thread.expect("the system has threads");
        thread.join().unwrap_or_else(|panic| Err(text_of(&*panic)))
    })
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "it panicked".to_owned())
}

fn report(count: usize, failed: &[(String, String)], filtered: usize, took: Duration) -> ExitCode {
    if !failed.is_empty() {
        println!("\nfailures:\n");
        for (name, why) in failed {
            println!("---- {name} ----\n{why}\n");
        }
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    // A subject that could not be opened counts as one failure, but is no case.
    let passed = count
        - failed
            .iter()
            .filter(|(name, _)| !name.ends_with("::open"))
            .count();
    println!(
        "\ntest result: {word}. {passed} passed; {} failed; 0 ignored; 0 measured; {filtered} filtered out; \
         finished in {:.2}s\n",
        failed.len(),
        took.as_secs_f64()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(101)
    }
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            filters: Vec::new(),
            skips: Vec::new(),
            exact: false,
            list: false,
            threads: THREADS,
        };
        while let Some(argument) = given.next() {
            let (flag, inline) = match argument.split_once('=') {
                Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.to_owned())),
                _ => (argument.as_str(), None),
            };
            let mut value = || {
                let value = inline.clone().or_else(|| given.next());
                value.ok_or_else(|| format!("{flag} needs a value"))
            };
            match flag {
                "--exact" => arguments.exact = true,
                "--list" => arguments.list = true,
                "--skip" => arguments.skips.push(value()?),
                "--test-threads" => {
                    let text = value()?;
                    let threads = text.parse().ok().filter(|threads| *threads > 0);
                    arguments.threads =
                        threads.ok_or(format!("--test-threads {text}: not a number"))?;
                }
                // Accepted without an effect: output is never captured, and there is one format.
                "--nocapture" | "--no-capture" | "-q" | "--quiet" => {}
                "--format" | "--color" => drop(value()?),
                _ if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
                _ => arguments.filters.push(argument),
            }
        }
        Ok(arguments)
    }

    fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| {
            if self.exact {
                name == filter
            } else {
                name.contains(filter.as_str())
            }
        };
        (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}
