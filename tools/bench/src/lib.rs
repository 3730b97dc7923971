//! Measures a store through this library, always beside what the engine's own bare client does with the same server in
//! the same run: machines are noisy, ratios less so.
//!
//! The command's `bench` and this crate's own binary call [`run`]; worker processes end up in [`run_worker`].

mod args;
mod bare;
mod contender;
mod holds;
mod hot;
#[cfg(feature = "peers")]
mod node_redlock;
mod pairs;
mod report;
mod stats;
mod within;
mod worker;

pub use args::{Args, Case};
pub use report::Section;
pub use worker::{Relaunch, run_worker};

use std::time::Duration;

use fencelock::{Result, StoreUrl, Wake};

use crate::contender::engine;

/// One run: what to measure, where, and how to start workers.
pub(crate) struct Bench<'a> {
    pub(crate) args: &'a Args,
    pub(crate) url: &'a str,
    pub(crate) relaunch: &'a Relaunch,
    /// What the names of all its locks begin with.
    run: String,
    /// Whether waiters are told, so that a thousand connections make sense.
    pushes: bool,
}

/// All that a command needs: measures what `args` asks for on the store that `url` names and prints it, or does the work
/// of a worker process. `subcommand` is what this program must be started with to end up here again.
///
/// # Errors
/// As [`run`].
pub async fn command(args: &Args, url: &str, subcommand: &[&str]) -> Result<()> {
    if args.worker {
        return run_worker().await;
    }
    let program = std::env::current_exe().map_err(|error| bare::failed("this program", error))?;
    let words = subcommand.iter().copied().chain(["--worker"]);
    let relaunch = Relaunch {
        program,
        args: words.map(str::to_owned).collect(),
    };
    let show = |section: &Section| {
        if !args.json {
            println!("{section}");
        }
    };
    let sections = run(args, url, &relaunch, show).await?;
    if args.json {
        let all: Vec<_> = sections.iter().map(Section::to_json).collect();
        println!("{:#}", serde_json::Value::from(all));
    }
    Ok(())
}

/// Measures all that `args` asks for on the store that `url` names, and passes on each table as soon as it is there.
///
/// # Errors
/// Whatever the store says, and [`fencelock::Error::Internal`] if something cannot be measured, or if a lock turned out
/// to be none.
pub async fn run(
    args: &Args,
    url: &str,
    relaunch: &Relaunch,
    mut show: impl FnMut(&Section),
) -> Result<Vec<Section>> {
    let client = fencelock::connect(url).await?;
    let pushes = client.promises().wake == Wake::Push;
    let url = &named(url, &client.store())?;
    client.close().await?;
    let run = format!(
        "fencelock-bench/{}-{}",
        std::process::id(),
        fencelock::Clock::Boot.now().as_nanos()
    );
    let bench = Bench {
        args,
        url,
        relaunch,
        run,
        pushes,
    };
    let mut sections = Vec::new();
    for case in args.cases(engine(url)? != "memory") {
        let section = match case {
            Case::Pairs => pairs::measure(&bench).await?,
            Case::Loop => hot::measure_loop(&bench).await?,
            Case::Drain => hot::measure_drain(&bench).await?,
            Case::Within => within::measure(&bench).await?,
            Case::Holds => holds::measure(&bench).await?,
        };
        show(&section);
        sections.push(section);
    }
    #[cfg(feature = "sqlite")]
    if engine(url)? == "sqlite" {
        bare::sqlite::BareSqlite::open(url)?.remove();
    }
    #[cfg(feature = "mysql")]
    if engine(url)? == "mysql" {
        bare::mysql::BareMySql::open(url).await?.remove().await?;
    }
    #[cfg(feature = "postgres")]
    if engine(url)? == "postgres" {
        bare::postgres::BarePostgres::open(url)
            .await?
            .remove()
            .await?;
    }
    Ok(sections)
}

/// The URL with its file named, so that the baseline can lie beside it also where the store is the default file.
fn named(url: &str, store: &str) -> Result<String> {
    let parts = StoreUrl::parse(url)?;
    if parts.scheme != "sqlite" || !parts.path.is_empty() {
        return Ok(url.to_owned());
    }
    let options = url.split_once('?').map(|(_, options)| options);
    let store = store.replace('%', "%25").replace('?', "%3F");
    let store = store.replace('@', "%40");
    Ok(match options {
        Some(options) => format!("{store}?{options}"),
        None => store,
    })
}

impl Bench<'_> {
    /// A name for locks of this run.
    fn name(&self, what: &str) -> String {
        format!("{}/{what}", self.run)
    }

    /// Whether there is a bare client to compare with.
    fn has_baseline(&self) -> Result<bool> {
        Ok(engine(self.url)? != "memory")
    }

    /// Whether each waiter is to have a client of its own: first not, then so if that makes sense.
    fn clients(&self) -> Result<Vec<bool>> {
        // On SQLite each client has threads and open files of its own: too many for a thousand waiters.
        let own_clients = self.pushes && engine(self.url)? != "sqlite";
        Ok(if own_clients {
            vec![false, true]
        } else {
            vec![false]
        })
    }

    /// The median of a bare round trip to the server, in nanoseconds; `None` if there is no server.
    async fn round_trip(&self) -> Result<Option<f64>> {
        #[cfg(feature = "redis")]
        if engine(self.url)? == "redis" {
            let bare = bare::redis::BareRedis::open(self.url).await?;
            return Ok(stats::median(&bare.round_trips(2000).await?));
        }
        #[cfg(feature = "etcd")]
        if engine(self.url)? == "etcd" {
            let bare = bare::etcd::BareEtcd::open(self.url).await?;
            return Ok(stats::median(&bare.round_trips(200).await?));
        }
        #[cfg(feature = "zookeeper")]
        if engine(self.url)? == "zookeeper" {
            let bare = bare::zookeeper::BareZooKeeper::open(self.url).await?;
            return Ok(stats::median(&bare.round_trips(200).await?));
        }
        #[cfg(feature = "mysql")]
        if engine(self.url)? == "mysql" {
            let bare = bare::mysql::BareMySql::open(self.url).await?;
            return Ok(stats::median(&bare.round_trips(2000).await?));
        }
        #[cfg(feature = "postgres")]
        if engine(self.url)? == "postgres" {
            let bare = bare::postgres::BarePostgres::open(self.url).await?;
            return Ok(stats::median(&bare.round_trips(2000).await?));
        }
        Ok(None)
    }

    /// Whether the commands that reach the server can be counted.
    fn counts(&self) -> Result<bool> {
        Ok(cfg!(feature = "redis") && engine(self.url)? == "redis")
    }

    /// How many commands clients send within `period`; only where [`Bench::counts`].
    async fn commands_within(&self, period: Duration) -> Result<u64> {
        #[cfg(feature = "redis")]
        return bare::redis::BareRedis::open(self.url)
            .await?
            .commands_within(period)
            .await;
        #[cfg(not(feature = "redis"))]
        Err(bare::failed(
            "the benchmark",
            format!("nothing counts for {period:?}"),
        ))
    }
}
