//! Pairs of take and release per second: bare SQLite (an INSERT and a DELETE, each in its own transaction), the SQLite
//! engine alone, and the whole library. Several processes share one new file each time.
//!
//! `cargo run --release -p fencelock-sqlite --example sqlite_pairs -- [PROCESSES] [SECONDS] [TASKS]`

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fencelock_core::engine::{Claim, Leave, Standing, Withdrawn};
use fencelock_core::{ClaimIds, Client, Engine, LockName, Release};
use fencelock_sqlite::Sqlite;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, path, worker, seconds, tasks] = args.as_slice() {
        let seconds = Duration::from_secs_f64(seconds.parse()?);
        let path = Path::new(path);
        let pairs = match kind.as_str() {
            "bare" => bare(path, worker, seconds)?,
            "library" => library(path, worker, seconds)?,
            _ => engine(path, worker, seconds, tasks.parse()?)?,
        };
        println!("{pairs}");
        return Ok(());
    }
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |text| text.parse());
    let (processes, seconds, tasks) = (number(0, 8)?, number(1, 3)?, number(2, 1)?);
    let mut ratios = (Vec::new(), Vec::new());
    for round in 1..=5 {
        let bare = run("bare", processes, seconds, tasks)?;
        let engine = run("engine", processes, seconds, tasks)?;
        let library = run("library", processes, seconds, 1)?;
        let per_second = |pairs: &[u64]| pairs.iter().sum::<u64>() / seconds;
        let share = |pairs: &[u64]| {
            let least = pairs.iter().min().copied().unwrap_or(0);
            let most = pairs.iter().max().copied().unwrap_or(0);
            format!("{least}..{most}")
        };
        let ratio = |pairs: &[u64]| per_second(pairs) as f64 / per_second(&bare) as f64;
        print!("round {round}:");
        for (what, pairs) in [("bare", &bare), ("engine", &engine), ("library", &library)] {
            print!(" {what} {}/s ({} each),", per_second(pairs), share(pairs));
        }
        println!(" ratios {:.2} {:.2}", ratio(&engine), ratio(&library));
        ratios.0.push(ratio(&engine));
        ratios.1.push(ratio(&library));
    }
    let median = |mut ratios: Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    println!(
        "median ratios: engine {:.2}, library {:.2}",
        median(ratios.0),
        median(ratios.1)
    );
    Ok(())
}

fn run(kind: &str, processes: u64, seconds: u64, tasks: u64) -> Result<Vec<u64>, Failure> {
    let directory = std::env::temp_dir().join(format!("fencelock-pairs-{}", std::process::id()));
    std::fs::create_dir(&directory)?;
    let path = directory.join("locks.db");
    let start = |worker: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(kind).arg(&path).arg(worker.to_string());
        command.arg(seconds.to_string()).arg(tasks.to_string());
        command.stdout(Stdio::piped()).spawn()
    };
    let children = (0..processes).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut pairs = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        pairs.push(String::from_utf8(output.stdout)?.trim().parse()?);
    }
    std::fs::remove_dir_all(&directory)?;
    Ok(pairs)
}

fn bare(path: &Path, worker: &str, seconds: Duration) -> Result<u64, Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(10))?;
    while connection
        .pragma_update(None, "journal_mode", "wal")
        .is_err()
    {}
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.execute_batch(
        "CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, owner TEXT) WITHOUT ROWID",
    )?;
    let run = |sql: &str, values: &[&str]| -> rusqlite::Result<()> {
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let values = rusqlite::params_from_iter(values);
        connection.prepare_cached(sql)?.execute(values)?;
        connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    };
    let name = format!("job-{worker}");
    let (mut pairs, start) = (0, Instant::now());
    while start.elapsed() < seconds {
        run("INSERT INTO locks VALUES (?1, ?2)", &[&name, "owner"])?;
        run("DELETE FROM locks WHERE name = ?1", &[&name])?;
        pairs += 1;
    }
    Ok(pairs)
}

fn engine(path: &Path, worker: &str, seconds: Duration, tasks: u64) -> Result<u64, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let engine = Arc::new(Sqlite::at(path).await?);
        let pairs = Arc::new(AtomicU64::new(0));
        let start = Instant::now();
        let work = |task: u64| {
            let (engine, pairs) = (Arc::clone(&engine), Arc::clone(&pairs));
            let name = format!("job-{worker}-{task}");
            tokio::spawn(async move {
                let ids = ClaimIds::new()?;
                while start.elapsed() < seconds {
                    let claim = claim(&name, &ids)?;
                    let standing = engine.place(&claim).await?;
                    assert!(matches!(standing, Standing::Held(_)), "{standing:?}");
                    let withdrawn = engine.withdraw(&claim, Leave::Release).await?;
                    assert_eq!(withdrawn, Withdrawn::Released);
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), fencelock_core::Error>(())
            })
        };
        let tasks: Vec<_> = (0..tasks).map(work).collect();
        for task in tasks {
            task.await??;
        }
        engine.close().await?;
        Ok(pairs.load(Ordering::Relaxed))
    })
}

fn library(path: &Path, worker: &str, seconds: Duration) -> Result<u64, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    runtime.block_on(async {
        let client = Client::new(Arc::new(Sqlite::at(path).await?))?;
        let name = format!("job-{worker}");
        let (mut pairs, start) = (0, Instant::now());
        while start.elapsed() < seconds {
            let guard = client.lock(&name).await?;
            let released = guard.release().await?;
            assert_eq!(released, Release::Released);
            pairs += 1;
        }
        client.close().await?;
        Ok(pairs)
    })
}

fn claim(name: &str, ids: &ClaimIds) -> Result<Claim, fencelock_core::Error> {
    Ok(Claim::new(ids.next(), "host:1234", LockName::new(name)?))
}
