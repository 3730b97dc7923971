//! The benchmark that docs/benchmarks.md was measured with: it starts a redis-server of its own on one core, stays on
//! another itself, and measures that; or any other store, named with `--store`.

use std::process::ExitCode;

use clap::Parser;
use fencelock_bench::Args;
use fencelock_testbed::Redis;
use rustix::thread::{CpuSet, sched_setaffinity};

/// Measure a lock beside the bare client of its server, and beside other people's locks.
#[derive(Debug, Parser)]
#[command(name = "fencelock-bench")]
struct Command {
    /// Measure this store [default: a redis-server that this starts]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Let the system choose the cores, instead of core 0 for the server and core 1 for everything else
    #[arg(long)]
    unpinned: bool,

    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let command = Command::parse();
    match measure(&command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fencelock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(command: &Command) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if command.args.worker {
        return Ok(runtime.block_on(fencelock_bench::run_worker())?);
    }
    let pinned = !command.unpinned && std::thread::available_parallelism()?.get() > 1;
    let server = match &command.store {
        Some(_) => None,
        None if pinned => Some(Redis::builder().config("server_cpulist", "0").start()?),
        None => Some(Redis::start()?),
    };
    if pinned {
        // Before any other thread or process is started, so that they inherit it.
        let mut cores = CpuSet::new();
        cores.set(1);
        sched_setaffinity(None, &cores)?;
    }
    let url = match (&server, &command.store) {
        (Some(server), _) => server.url(),
        (None, store) => store.clone().unwrap_or_default(),
    };
    Ok(runtime.block_on(fencelock_bench::command(&command.args, &url, &[]))?)
}
