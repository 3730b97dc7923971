//! Bugs that are planted in the core, in the engines for Redis, in the lock service with Redis, and in moves between
//! stores. Torture must find each bug, and must find nothing without them.
//!
//! Only `--cfg fencelock_planted` compiles them in. This program builds itself a second time with that option, through
//! `RUSTC_WORKSPACE_WRAPPER`. Cargo runs the wrapper for the crates of this workspace alone, so the dependencies are
//! not built again. This program is the wrapper, too. With the bugs inside it is `fencelock torture`.

mod moves;

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

/// A bug, the run that finds it, and the rules of which the run must break at least one.
struct Bug {
    name: &'static str,
    run: &'static str,
    breaks: &'static [&'static str],
}

const BUGS: &[Bug] = &[
    Bug {
        name: "validity-from-reply",
        run: "--start redis --faults delay --ttl 300ms --overstay 900 --names 8 --time 10s",
        breaks: &["loss-first", "exclusion"],
    },
    Bug {
        name: "release-without-owner-check",
        run: "--start redis --faults none --ttl 300ms --overstay 100 --names 4 --time 3s",
        // A holder whose lock was released by another client learns of it at its release or at its renewal.
        breaks: &["exclusion", "loss-first", "kept"],
    },
    Bug {
        name: "token-before-write-back",
        run: "--start redlock --faults none --ttl 500ms --names 1 --time 5s",
        breaks: &["token-once", "token-order"],
    },
    // The lock service. A late answer is enough: a lease that counts from the answer is too long by the whole poll.
    Bug {
        name: "lease-from-answer",
        run: "--start http-redis --faults delay --ttl 1s --overstay 900 --names 4 --time 8s",
        breaks: &["loss-first", "exclusion"],
    },
    // A poll goes to another replica than the one before, while the lock is held for longer than a claim window. This
    // needs no fault. Each name gives a few chances; with two names some runs had none.
    Bug {
        name: "gateway-withdraws",
        run: "--start http-redis --faults none --ttl 4s --hold 3s --overstay 0 --names 8 --workers 3 --tasks 8 --time 10s",
        breaks: &["exclusion", "loss-first", "kept", "queue"],
    },
    // The other four show only when requests are repeated at the right moments.
    Bug {
        name: "gateway-confirms",
        run: REVIVE,
        breaks: &["late"],
    },
    Bug {
        name: "renew-by-id",
        run: REVIVE,
        breaks: &["late"],
    },
    Bug {
        name: "place-shortens",
        run: REVIVE,
        breaks: &["late"],
    },
    Bug {
        name: "renewal-shortens",
        run: REVIVE,
        breaks: &["late"],
    },
    // Moves between two stores. Each bug shows at the moment of a step, so each has a schedule of its own (moves.rs).
    Bug {
        name: "no-hush",
        run: "--move hush",
        breaks: &["token-order"],
    },
    Bug {
        name: "floor-ignored",
        run: "--move floor",
        breaks: &["token-order"],
    },
    Bug {
        name: "missing-record-is-old",
        run: "--move lost",
        breaks: &["exclusion"],
    },
    Bug {
        name: "step-without-waiting",
        run: "--move waiting",
        breaks: &["exclusion"],
    },
    Bug {
        name: "past-the-arbiter",
        run: "--move arbiter",
        breaks: &["token-order"],
    },
    Bug {
        name: "knowledge-from-answer",
        run: "--move answer",
        breaks: &["exclusion"],
    },
];

/// A lease that is much longer than a claim window.
const REVIVE: &str = "--start http-redis --faults revive --ttl 6s --hold 600ms --overstay 0 --names 8 --workers 3 --tasks 12 \
    --together 1 --time 10s";

/// In how many runs a bug must be found. Some bugs show only by chance, and a busy machine gives few chances in a run.
const RUNS: usize = 3;

/// How many runs there are at once. Each has servers and workers, and other tests run at the same time.
const AT_ONCE: usize = 3;

fn main() -> ExitCode {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let first = args.first().map(Path::new);
    if first
        .and_then(Path::file_stem)
        .is_some_and(|name| name == "rustc")
    {
        return compile(&args);
    }
    if cfg!(fencelock_planted) {
        let words: Vec<_> = args.iter().filter_map(|word| word.to_str()).collect();
        return match words[..] {
            ["--move", name, ..] => one_move(name),
            _ => torture(),
        };
    }
    match show() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Printed in cargo's form, so that a search for errors in a long output finds it.
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Acts as cargo's wrapper: runs the compiler with the bugs compiled in.
fn compile(args: &[OsString]) -> ExitCode {
    let Some((rustc, args)) = args.split_first() else {
        return ExitCode::FAILURE;
    };
    let mut rustc = Command::new(rustc);
    // Returns only if the program cannot be started.
    let error = rustc.args(args).args(["--cfg", "fencelock_planted"]).exec();
    eprintln!("{error}");
    ExitCode::FAILURE
}

#[tokio::main]
async fn torture() -> ExitCode {
    fencelock_torture::program().await
}

/// Runs a schedule of a move, and prints its result as torture does.
#[tokio::main(worker_threads = 2)]
async fn one_move(name: &str) -> ExitCode {
    let broken = match moves::run(name).await {
        Ok(broken) => broken,
        Err(error) => {
            eprintln!("{name}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let violations = broken
        .iter()
        .map(|rule| json!({ "rule": rule, "excuse": null }));
    let violations: Vec<_> = violations.collect();
    let history = json!({ "troubles": [] });
    println!(
        "{}",
        json!({ "verdict": { "violations": violations }, "history": history })
    );
    match broken.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn show() -> Result<(), String> {
    let begin = Instant::now();
    let program = build()?;
    println!("built with the bugs in {:?}", begin.elapsed());
    // First with all bugs off, then with each bug.
    for planted in [false, true] {
        let program = &program;
        // With the bugs off, bugs with the same run share it.
        let mut runs = BTreeSet::new();
        let bugs = BUGS.iter().filter(|bug| planted || runs.insert(bug.run));
        let bugs: Vec<&Bug> = bugs.collect();
        // Moves mostly wait, so all of them run at once.
        let (moves, bugs): (Vec<&Bug>, Vec<&Bug>) = bugs
            .into_iter()
            .partition(|bug| bug.run.starts_with("--move"));
        let chunks = bugs.chunks(AT_ONCE).chain(moves.chunks(moves.len().max(1)));
        let ran = chunks.flat_map(|bugs| run_at_once(program, bugs, planted));
        let ran: Vec<_> = ran.collect();
        let bugs: Vec<&Bug> = bugs.iter().chain(&moves).copied().collect();
        for (bug, ran) in bugs.iter().zip(ran) {
            let failed = |why| format!("{}: {why}", bug.name);
            let is_found = |broken: &[String]| {
                let mut broken = broken.iter();
                broken.any(|rule| bug.breaks.contains(&rule.as_str()))
            };
            let mut broken = ran.map_err(failed)?;
            for _ in 1..RUNS {
                if planted && !is_found(&broken) {
                    broken = run(program, bug, planted).map_err(failed)?;
                }
            }
            let found = is_found(&broken);
            let rules: BTreeSet<&str> = broken.iter().map(String::as_str).collect();
            println!(
                "{}, {}: {} violations of {rules:?}",
                bug.name,
                if planted { "planted" } else { "not there" },
                broken.len()
            );
            if planted && !found {
                return Err(format!("{} is not found: {rules:?} is broken", bug.name));
            }
            if !planted && !broken.is_empty() {
                return Err(format!("{}, and no bug: {rules:?} is broken", bug.run));
            }
        }
    }
    println!(
        "planted bugs: all {} found, in {:?}",
        BUGS.len(),
        begin.elapsed()
    );
    Ok(())
}

fn run_at_once(program: &Path, bugs: &[&Bug], planted: bool) -> Vec<Result<Vec<String>, String>> {
    thread::scope(|scope| {
        let started = bugs
            .iter()
            .map(|bug| scope.spawn(move || run(program, bug, planted)));
        let started: Vec<_> = started.collect();
        started
            .into_iter()
            .map(|run| run.join().unwrap_or_else(|_| Err("it panicked".into())))
            .collect()
    })
}

/// This program with the bugs inside.
fn build() -> Result<PathBuf, String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    // It is in TARGET/debug/deps.
    let target = this
        .ancestors()
        .nth(3)
        .ok_or("this program is in no target directory")?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Remove cargo's variables about this package. A build script that depends on them would run again.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| text.starts_with(prefix))
        {
            cargo.env_remove(&name);
        }
    }
    let built = cargo
        // The features of the whole test suite, so that everything else is already built.
        .args([
            "test",
            "--workspace",
            "--exclude",
            "fencelock-interop",
            "--features",
            "fencelock-cli/all",
            "--test",
            "planted",
            "--no-run",
        ])
        .args([
            "--offline",
            "--message-format",
            "json-render-diagnostics",
            "--target-dir",
        ])
        .arg(target)
        .env("RUSTC_WORKSPACE_WRAPPER", &this)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let output = String::from_utf8_lossy(&built.stdout);
    let executable = output.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let planted = message["target"]["name"] == "planted";
        message["executable"]
            .as_str()
            .filter(|_| planted)
            .map(PathBuf::from)
    });
    match executable.filter(|_| built.status.success()) {
        Some(executable) if executable != this => Ok(executable),
        _ => Err(format!(
            "building it with the bugs: {}",
            String::from_utf8_lossy(&built.stderr)
        )),
    }
}

/// The rules whose promises were broken, from the JSON of a run.
fn run(program: &Path, bug: &Bug, planted: bool) -> Result<Vec<String>, String> {
    let mut command = Command::new(program);
    command
        .args(bug.run.split_whitespace())
        .args(["--seed", "1", "--json"]);
    if planted {
        command.env("FENCELOCK_PLANTED", bug.name);
    }
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().map_err(|error| error.to_string())?;
    let output: Value = serde_json::from_slice(&stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&stderr)))?;
    let violations = output["verdict"]["violations"]
        .as_array()
        .ok_or("no verdict")?;
    let broken = violations
        .iter()
        .filter(|violation| violation["excuse"].is_null());
    let broken: Vec<String> = broken
        .filter_map(|violation| violation["rule"].as_str().map(str::to_owned))
        .collect();
    let troubles = &output["history"]["troubles"];
    if troubles
        .as_array()
        .is_some_and(|troubles| !troubles.is_empty())
    {
        return Err(format!("the run was not complete: {troubles}"));
    }
    if status.success() != broken.is_empty() {
        return Err(format!("it ended with {status}, and {broken:?} is broken"));
    }
    Ok(broken)
}
