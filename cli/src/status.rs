//! `status`: one line for each store of the configuration file.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock::composite::list_partial;
use fencelock::engine::Engine;
use fencelock::layers::Breaker;
use fencelock::{Config, Error, LockView, Purpose, StoreUrl, in_words, shard_urls};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::args::Status;
use crate::doctor::url_findings;
use crate::exit::{Outcome, code, code_of, one_line, print, worse};
use crate::store::{self, Wanted};

/// How often `--watch` looks.
const PERIOD: Duration = Duration::from_secs(2);

/// For how long a store may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn status(args: Status, store: Wanted) -> Outcome {
    let file = store.config_file()?;
    let mut open = BTreeMap::new();
    loop {
        let looked = tokio::time::Instant::now();
        let mut rows = Vec::new();
        for name in file.names() {
            let known = open.remove(name);
            rows.push(row(&file, name, known));
        }
        let rows = join_all(rows).await;
        let shown = match args.json {
            true => json(&rows),
            false => table(&rows),
        };
        let clear = match args.watch && !args.json && io::stdout().is_terminal() {
            // Clears the screen.
            true => "\u{1b}[H\u{1b}[2J",
            false => "",
        };
        print(&format!("{clear}{shown}"))?;
        let codes = rows
            .iter()
            .filter_map(|row| row.wrong.as_ref())
            .map(|(_, code)| *code);
        let worst = codes.fold(code::DONE, worse);
        for row in rows {
            if let Some(engine) = row.engine {
                open.insert(row.name, engine);
            }
        }
        if !args.watch {
            close(open).await;
            return Ok(worst);
        }
        tokio::time::sleep_until(looked + PERIOD).await;
    }
}

async fn close(open: BTreeMap<String, Arc<Breaker>>) {
    let all = open.into_values().map(|engine| async move {
        let _ = tokio::time::timeout(store::CLOSE_TIMEOUT, engine.close()).await;
    });
    join_all(all).await;
}

/// The state of one store, as last seen.
struct Row {
    name: String,
    /// The store, to be looked at again.
    engine: Option<Arc<Breaker>>,
    /// How long it took to answer; opening it is part of that the first time.
    reached: Option<Duration>,
    /// The version of the record of a set, or of a store in a set.
    version: Option<u64>,
    held: usize,
    waiting: usize,
    findings: usize,
    /// Why the store, or a part of it, did not answer, with the exit code that this has.
    wrong: Option<(String, u8)>,
}

impl Row {
    /// Whether requests for locks would fail at once, judging by the answers that this command got.
    fn breaker(&self) -> Option<&'static str> {
        let engine = self.engine.as_ref()?;
        Some(match engine.away() {
            Some(_) => "open",
            None => "closed",
        })
    }
}

async fn row(file: &Config, name: &str, engine: Option<Arc<Breaker>>) -> Row {
    let mut row = Row {
        name: name.to_owned(),
        engine,
        reached: None,
        version: None,
        held: 0,
        waiting: 0,
        findings: 0,
        wrong: None,
    };
    let seen = tokio::time::timeout(PATIENCE, look(file, &mut row)).await;
    row.wrong = match seen {
        Ok(Ok(())) => row.wrong,
        Ok(Err(error)) => Some(with_code(&error)),
        Err(_) => {
            let why = format!("no answer within {}", in_words(PATIENCE));
            Some((why, code::UNAVAILABLE))
        }
    };
    row
}

fn with_code(error: &Error) -> (String, u8) {
    (error.to_string(), code_of(error))
}

async fn look(file: &Config, row: &mut Row) -> Result<(), Error> {
    let begun = Instant::now();
    let url = file.url(&row.name)?;
    let engine = match &row.engine {
        Some(engine) => Arc::clone(engine),
        None => Arc::new(Breaker::new(store::engine_to_inspect(&url).await?)),
    };
    row.engine = Some(Arc::clone(&engine));
    let parsed = StoreUrl::parse(&url)?;
    let (locks, away) = locks(&*engine, &parsed).await?;
    row.reached = Some(begun.elapsed());
    row.wrong = away.first().map(with_code);
    row.held = locks.iter().map(|lock| lock.holders.len()).sum();
    row.waiting = locks.iter().map(|lock| lock.waiters.len()).sum();
    // A user who may not read the record sees no version.
    if let Ok(record) = engine.record("", None).await {
        let text = serde_json::from_str::<Value>(&record.text);
        row.version = text.ok().and_then(|text| text["version"].as_u64());
    }
    let purpose = file.purpose(&row.name).unwrap_or(Purpose::Correctness);
    let mut findings = engine.promises().limits.clone();
    findings.extend(engine.inspect().diagnose().await?);
    findings.extend(url_findings(&parsed));
    findings.retain(|finding| {
        purpose == Purpose::Correctness || finding.purpose == Purpose::Efficiency
    });
    row.findings = findings.len();
    Ok(())
}

/// The locks of a store, and the errors of the shards whose locks are left out.
async fn locks(engine: &dyn Engine, url: &StoreUrl) -> Result<(Vec<LockView>, Vec<Error>), Error> {
    let shards = shard_urls(url);
    if !shards.is_empty() {
        let ids: Vec<_> = shards.iter().map(|(id, _)| id.as_str()).collect();
        return list_partial(engine, &ids, "").await;
    }
    let (mut locks, mut at) = (Vec::new(), None);
    loop {
        let page = engine.inspect().list("", at, 1000).await?;
        locks.extend(page.items);
        at = page.next;
        if at.is_none() {
            return Ok((locks, Vec::new()));
        }
    }
}

fn table(rows: &[Row]) -> String {
    let head = [
        "STORE", "REACHED", "VERSION", "HELD", "WAITING", "FINDINGS", "BREAKER",
    ];
    let mut lines = vec![(head.map(str::to_owned), String::new())];
    for row in rows {
        let known = |text: String| match row.reached {
            Some(_) => text,
            None => "-".to_owned(),
        };
        let cells = [
            format!("@{}", row.name),
            row.reached
                .map_or("no".to_owned(), |after| format!("in {}", in_words(after))),
            row.version
                .map_or("-".to_owned(), |version| version.to_string()),
            known(row.held.to_string()),
            known(row.waiting.to_string()),
            known(row.findings.to_string()),
            row.breaker().unwrap_or("-").to_owned(),
        ];
        let wrong = row.wrong.as_ref().map(|(why, _)| one_line(why));
        lines.push((cells, wrong.unwrap_or_default()));
    }
    let widths: [usize; 7] = std::array::from_fn(|column| {
        let widths = lines.iter().map(|(cells, _)| cells[column].chars().count());
        widths.max().unwrap_or_default()
    });
    let mut text = String::new();
    for (cells, wrong) in &lines {
        let padded = cells
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = padded.collect::<Vec<_>>().join("  ") + "  " + wrong;
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn json(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| {
        json!({
            "store": row.name,
            "reached": row.reached.is_some(),
            "reached_us": row.reached.map(|after| u64::try_from(after.as_micros()).unwrap_or(u64::MAX)),
            "version": row.version,
            "held": row.reached.map(|_| row.held),
            "waiting": row.reached.map(|_| row.waiting),
            "breaker": row.breaker(),
            "findings": row.reached.map(|_| row.findings),
            "error": row.wrong.as_ref().map(|(why, _)| why),
        })
    });
    format!("{}\n", Value::Array(rows.collect()))
}
