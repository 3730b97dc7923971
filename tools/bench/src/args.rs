//! The options of the benchmark, for the command and for this crate's own binary.

use std::time::Duration;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Case {
    /// Uncontended acquire and release.
    Pairs,
    /// One contended lock in a closed loop.
    Loop,
    /// One contended lock: all tasks queue, then each holds it once.
    Drain,
    /// Hand-off inside one process.
    Within,
    /// Many locks held at once.
    Holds,
    /// How one client scales; measured only if it is named.
    Scale,
}

/// What to measure, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure [default: all of it]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CASE")]
    pub only: Vec<Case>,

    /// Workers of the uncontended measurement, in each process
    #[arg(long, value_delimiter = ',', default_value = "1,64", value_name = "N")]
    pub workers: Vec<usize>,

    /// Names that the workers lock in turn [default: one for each worker]
    #[arg(long, value_name = "N")]
    pub names: Option<usize>,

    /// Processes of the uncontended measurement
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub pair_processes: usize,

    /// Waiters for the contended lock in a closed loop, over all processes
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "2,16,128,1000",
        value_name = "N"
    )]
    pub waiters: Vec<usize>,

    /// Waiters of the drain, over all processes
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16,128",
        value_name = "N"
    )]
    pub drain_waiters: Vec<usize>,

    /// Processes that use the contended lock
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub processes: usize,

    /// Tasks that hand over a lock inside one process
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "16,128",
        value_name = "N"
    )]
    pub tasks: Vec<usize>,

    /// Locks to hold at once
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub holds: usize,

    /// The ttl of these holds, which last longer than the ttl
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DUR")]
    pub ttl: Duration,

    /// Locks that one client holds at once, in the measurement of its scale; 0 for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10000,100000",
        value_name = "N"
    )]
    pub scale_holds: Vec<usize>,

    /// Tasks of one client that wait for one name; 0 for none
    #[arg(long, value_delimiter = ',', default_value = "10000", value_name = "N")]
    pub scale_waiters: Vec<usize>,

    /// Tasks of one client that wait for many names; 0 for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100000",
        value_name = "N"
    )]
    pub scale_spread: Vec<usize>,

    /// The number of these names
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    pub scale_names: usize,

    /// Names that one client takes and releases in turn, 64 at a time; 0 for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100000",
        value_name = "N"
    )]
    pub scale_turns: Vec<usize>,

    /// For how long the client is watched while it only holds and waits
    #[arg(long, default_value = "20s", value_parser = duration, value_name = "DUR")]
    pub scale_idle: Duration,

    /// How often each measurement is repeated
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub rounds: usize,

    /// The duration of each repetition
    #[arg(long, default_value = "1s", value_parser = duration, value_name = "DUR")]
    pub period: Duration,

    /// Also measure other lock libraries
    #[cfg(feature = "peers")]
    #[arg(long)]
    pub peers: bool,

    /// Also measure kazoo on the contended lock, with this Python (tools/interop/setup.sh installs one)
    #[cfg(feature = "zookeeper")]
    #[arg(long, value_name = "PYTHON")]
    pub kazoo: Option<std::path::PathBuf>,

    /// Also measure Go's clientv3/concurrency on the contended lock, with this program (built from
    /// tools/bench/peers/etcd_concurrency.go)
    #[cfg(feature = "etcd")]
    #[arg(long, value_name = "PROGRAM")]
    pub concurrency: Option<std::path::PathBuf>,

    /// Print the raw numbers as JSON instead of tables
    #[arg(long)]
    pub json: bool,

    /// The URL of a lock service before the store, which is measured in turns with the store alone
    #[cfg(feature = "http")]
    #[arg(skip)]
    pub service: Option<String>,

    /// Be a worker process of a benchmark
    #[arg(long, hide = true)]
    pub worker: bool,
}

impl Args {
    /// The cases for a store, which several processes can use or not.
    pub(crate) fn cases(&self, shared: bool) -> Vec<Case> {
        if !self.only.is_empty() {
            return self.only.clone();
        }
        let all = [
            Case::Pairs,
            Case::Loop,
            Case::Drain,
            Case::Within,
            Case::Holds,
        ];
        let between_processes = |case: &Case| matches!(case, Case::Loop | Case::Drain);
        all.into_iter()
            .filter(|case| shared || !between_processes(case))
            .collect()
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let duration = fencelock::parse_duration("duration", text);
    let duration = duration.map_err(|error| error.to_string())?;
    if duration.is_zero() {
        return Err("it must be longer than 0".into());
    }
    Ok(duration)
}
