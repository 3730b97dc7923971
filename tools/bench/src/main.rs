//! The benchmark of docs/benchmarks.md: it starts a redis-server on one core and measures it from another core; or a server
//! of another kind with `--start`; or any store with `--store`.

#[cfg(feature = "http")]
use std::net::TcpStream;
#[cfg(feature = "http")]
use std::path::Path;
use std::process::ExitCode;
#[cfg(feature = "http")]
use std::process::Stdio;
#[cfg(feature = "http")]
use std::time::{Duration, Instant};

use clap::Parser;
use fencelock_bench::Args;
use fencelock_testbed::{Etcd, MariaDb, Postgres, Redis, Redlock, ZooKeeper};
#[cfg(feature = "http")]
use fencelock_testbed::{Port, Process, Streams};
use rustix::thread::{CpuSet, sched_setaffinity};

/// How long a service may take to start.
#[cfg(feature = "http")]
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// Measure a lock, with the plain client of its server and other lock libraries for comparison.
#[derive(Debug, Parser)]
#[command(name = "fencelock-bench")]
struct Command {
    /// Measure this store [default: a redis-server that is started]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Start this number of servers, and measure Redlock on them
    #[arg(long, value_name = "N", conflicts_with = "store")]
    nodes: Option<usize>,

    /// Start a server of this kind instead, and measure it
    #[arg(long, value_enum, value_name = "KIND", conflicts_with_all = ["store", "nodes"])]
    start: Option<Kind>,

    /// Options for the URL of that server, such as `strategy=get-lock`
    #[arg(long, value_name = "OPTIONS", requires = "start")]
    options: Option<String>,

    /// Start this `fencelock` program as a lock service on the same core as the redis-server. Measure the server with
    /// and without the service, in turns
    #[cfg(feature = "http")]
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["store", "nodes", "start"])]
    serve: Option<std::path::PathBuf>,

    /// Let the system choose the cores, instead of core 0 for the server and core 1 for everything else
    #[arg(long)]
    unpinned: bool,

    #[command(flatten)]
    args: Args,
}

/// The servers that can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Mariadb,
    Postgres,
    Etcd,
    Zookeeper,
}

/// A running server; killed when dropped.
enum Server {
    MariaDb(Box<MariaDb>),
    Postgres(Box<Postgres>),
    Etcd(Box<Etcd>),
    ZooKeeper(Box<ZooKeeper>),
}

impl Server {
    fn start(kind: Kind) -> fencelock_testbed::Result<Self> {
        Ok(match kind {
            Kind::Mariadb => Self::MariaDb(Box::new(MariaDb::start()?)),
            Kind::Postgres => Self::Postgres(Box::new(Postgres::start()?)),
            Kind::Etcd => Self::Etcd(Box::new(Etcd::builder().fsync().start()?)),
            Kind::Zookeeper => Self::ZooKeeper(Box::new(ZooKeeper::start()?)),
        })
    }

    fn url(&self, options: Option<&str>) -> String {
        let url = match self {
            Self::MariaDb(server) => server.url(),
            Self::Postgres(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::ZooKeeper(server) => server.url(),
        };
        match options {
            Some(options) => format!("{url}?{options}"),
            None => url,
        }
    }
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
    let redis = match (&command.store, &group, command.start) {
        (None, None, None) => Some(builder().start()?),
        _ => None,
    };
    if pinned && command.start.is_some() {
        // The server inherits it.
        pin_to(0)?;
    }
    let other = command.start.map(Server::start).transpose()?;
    if pinned {
        // Before any thread or process starts, so that all inherit it.
        pin_to(1)?;
    }
    #[cfg(feature = "http")]
    let (args, _service) = match (&command.serve, &redis) {
        (Some(program), Some(redis)) => {
            let service = Service::start(program, &redis.url(), pinned)?;
            let mut args = command.args.clone();
            args.service = Some(service.url());
            (args, Some(service))
        }
        _ => (command.args.clone(), None),
    };
    #[cfg(not(feature = "http"))]
    let args = command.args.clone();
    let url = match (&redis, &group, &other) {
        (Some(redis), _, _) => redis.url(),
        (_, Some(group), _) => group.url(),
        (_, _, Some(other)) => other.url(command.options.as_deref()),
        (None, None, None) => command.store.clone().unwrap_or_default(),
    };
    Ok(runtime.block_on(fencelock_bench::command(&args, &url, &[]))?)
}

/// A lock service before a redis-server; killed when dropped.
#[cfg(feature = "http")]
struct Service {
    _process: Process,
    port: Port,
}

#[cfg(feature = "http")]
impl Service {
    /// Starts it. If the redis-server is pinned to a core, the service uses the same core.
    fn start(
        program: &Path,
        store: &str,
        pinned: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let port = Port::free()?;
        let address = format!("127.0.0.1:{}", port.number());
        let mut serve = std::process::Command::new(program);
        serve.args(["--store", store, "serve", "--listen", &address]);
        let streams = Streams {
            stdin: Stdio::null(),
            stdout: Stdio::null(),
            stderr: Stdio::null(),
        };
        if pinned {
            // The service inherits it.
            pin_to(0)?;
        }
        let process = Process::spawn(&serve, streams)?;
        if pinned {
            pin_to(1)?;
        }
        let until = Instant::now() + STARTS_WITHIN;
        while TcpStream::connect(&address).is_err() {
            if process.ended().is_some() || Instant::now() > until {
                return Err(format!("{} does not serve {address}", program.display()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self {
            _process: process,
            port,
        })
    }

    fn url(&self) -> String {
        format!("fencelock+http://127.0.0.1:{}", self.port.number())
    }
}

fn pin_to(core: usize) -> rustix::io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores)
}
