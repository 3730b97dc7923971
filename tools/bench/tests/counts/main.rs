//! Compares the cost of the hot paths with `counts.txt`: how many instructions and allocations the client spends on one
//! operation. Unlike times, these counts are the same on a busy machine.
//!
//! Runs only when it is named. The head of `counts.txt` says how, and how to write that file again.

mod callgrind;
mod expected;
mod failed;
mod paths;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fencelock_testbed::Redis;

use crate::callgrind::Counted;
use crate::expected::{Cost, Expected};
use crate::failed::Failed;
use crate::paths::{BOUNDARY, PATHS};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ended = match args[..] {
        ["--walk", url] => paths::walk(url).map(|()| true),
        ["--renew"] => renew().map(|()| true),
        [] => compare(),
        _ => Err("the only argument is --renew".into()),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("counts: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Where callgrind writes.
fn directory() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("counts")
}

/// What each path costs now.
fn count() -> Result<Vec<Cost>, Failed> {
    let redis = Redis::start()?;
    // Under callgrind, and on a busy machine, an answer takes longer.
    let url = redis.url() + "?response-timeout=30s&claim-window=30s";
    let into = directory();
    callgrind::run(&into, BOUNDARY, &["--walk", &url])?;
    PATHS
        .iter()
        .enumerate()
        .map(|(at, path)| {
            let few = callgrind::read(&callgrind::part(&into, Some(3 * at + 2)))?;
            let many = callgrind::read(&callgrind::part(&into, Some(3 * at + 3)))?;
            let each = |count: fn(&Counted) -> u64| {
                let more = count(&many).saturating_sub(count(&few));
                more as f64 / path.difference() as f64
            };
            Ok(Cost {
                instructions: each(|counted| counted.instructions),
                allocations: each(|counted| counted.allocations),
            })
        })
        .collect()
}

fn renew() -> Result<(), Failed> {
    let costs = count()?;
    expected::write(&costs)
}

/// Prints the counts. Returns whether every path is within its limit.
fn compare() -> Result<bool, Failed> {
    let expected = Expected::read()?;
    let costs = count()?;
    let mut all_well = true;
    for (at, (path, cost)) in PATHS.iter().zip(&costs).enumerate() {
        let dear = expected.judge(path, cost)?;
        all_well &= !dear;
        if dear {
            let file = callgrind::part(&directory(), Some(3 * at + 3));
            println!(
                "       callgrind_annotate --auto=no --threshold=100 {}",
                file.display()
            );
        }
    }
    if !all_well {
        println!("{}", expected::ADVICE);
    }
    Ok(all_well)
}
