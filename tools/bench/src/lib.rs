//! Measures a store through this library, and the engine's bare client on the same server in the same run: on a noisy
//! machine the ratio is more reliable than the numbers.
//!
//! `fencelock bench` and this crate's own binary call [`command`]; worker processes call [`run_worker`].

mod args;
mod bare;
mod bench;
mod contended;
mod contender;
#[cfg(feature = "peers")]
mod foreign;
mod holds;
#[cfg(feature = "peers")]
mod node_redlock;
mod pairs;
mod processes;
mod report;
mod scale;
mod stats;
mod within;
mod worker;

pub use args::{Args, Case};
pub use bench::Relaunch;
pub use report::Section;
pub use worker::run_worker;

use fencelock::{Result, StoreUrl};

use crate::bench::Bench;
use crate::contender::engine;

/// Runs the command: measures the store at `url` and prints the results, or runs a worker process. `subcommand` are the
/// arguments with which this program calls this function again.
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

/// Measures the store at `url`, and passes each table to `show` as soon as it is complete.
///
/// # Errors
/// Errors of the store, and [`fencelock::Error::Internal`] if a measurement fails or a lock does not exclude.
pub async fn run(
    args: &Args,
    url: &str,
    relaunch: &Relaunch,
    mut show: impl FnMut(&Section),
) -> Result<Vec<Section>> {
    let client = fencelock::connect(url).await?;
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
    };
    let mut sections = Vec::new();
    for case in args.cases(engine(url)? != "memory") {
        let section = match case {
            Case::Pairs => pairs::measure(&bench).await?,
            Case::Loop => contended::measure_loop(&bench).await?,
            Case::Drain => contended::measure_drain(&bench).await?,
            Case::Within => within::measure(&bench).await?,
            Case::Holds => holds::measure(&bench).await?,
            Case::Scale => scale::measure(&bench).await?,
        };
        show(&section);
        sections.push(section);
    }
    remove_baseline(url).await?;
    Ok(sections)
}

/// Removes what the bare clients have stored.
async fn remove_baseline(url: &str) -> Result<()> {
    match engine(url)? {
        "shards" => {
            for url in &bare::shards::Spread::of(url)?.urls {
                Box::pin(remove_baseline(url)).await?;
            }
        }
        #[cfg(feature = "sqlite")]
        "sqlite" => bare::sqlite::BareSqlite::open(url)?.remove(),
        #[cfg(feature = "mysql")]
        "mysql" => bare::mysql::BareMySql::open(url).await?.remove().await?,
        #[cfg(feature = "postgres")]
        "postgres" => {
            let bare = bare::postgres::BarePostgres::open(url).await?;
            bare.remove().await?;
        }
        _ => {}
    }
    Ok(())
}

/// The URL with the path of its file, even for the default file, since the baseline's file is next to it.
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
