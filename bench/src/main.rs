//! The benchmark that docs/benchmarks.md was measured with: it starts a redis-server of its own on one core, stays on
//! another itself, and measures that; or any other store, named with `--store`.

use std::process::ExitCode;

use clap::Parser;
use fencelock_bench::Args;
use fencelock_testbed::{Redis, Redlock};
use rustix::thread::{CpuSet, sched_setaffinity};

/// Measure a lock beside the bare client of its server, and beside other people's locks.
#[derive(Debug, Parser)]
#[command(name = "fencelock-bench")]
struct Command {
    /// Measure this store [default: a redis-server that this starts]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Start so many servers, and measure the store of which a majority of them decides (`redlock:`)
    #[arg(long, value_name = "N", conflicts_with = "store")]
    nodes: Option<usize>,

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
    let builder = || match pinned {
        true => Redis::builder().config("server_cpulist", "0"),
        false => Redis::builder(),
    };
    let group = command
        .nodes
        .map(|nodes| Redlock::start_each(nodes, |_| builder()));
    let group = group.transpose()?;
    let server = match (&command.store, &group) {
        (None, None) => Some(builder().start()?),
        _ => None,
    };
    if pinned {
        // Before any other thread or process is started, so that they inherit it.
        let mut cores = CpuSet::new();
        cores.set(1);
        sched_setaffinity(None, &cores)?;
    }
    let url = match (&server, &group) {
        (Some(server), _) => server.url(),
        (None, Some(group)) => group.url(),
        (None, None) => command.store.clone().unwrap_or_default(),
    };
    Ok(runtime.block_on(fencelock_bench::command(&command.args, &url, &[]))?)
}
