//! `status`: one line for each store of the configuration file.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock::composite::list_partial;
use fencelock::engine::Engine;
use fencelock::layers::Breaker;
use fencelock::{Config, Error, Finding, LockView, Purpose, StoreUrl, in_words, shard_urls};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::args::Status;
use crate::doctor::url_findings;
use crate::exit::{Outcome, code, code_of, one_line, print, worse};
use crate::store::{self, Wanted};

/// How often `--watch` looks.
const PERIOD: Duration = Duration::from_secs(2);

/// For how long a store may take to open, to list its locks, and to be looked over; each.
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
    /// What the record says of a set, or of a store in a set.
    record: Option<Written>,
    /// Of all its parts; `None` if one of them did not answer.
    held: Option<usize>,
    waiting: Option<usize>,
    findings: usize,
    /// Why the store, or a part of it, did not answer, with the exit code that this has.
    wrong: Option<(String, u8)>,
}

/// The part of a record that is shown.
#[derive(Deserialize)]
struct Written {
    version: u64,
    phase: u32,
    /// Who made the last step, if the set may move.
    by: Option<String>,
}

impl Written {
    /// The phase of the move, if the set may move.
    fn moves_in(&self) -> Option<u32> {
        self.by.as_ref().map(|_| self.phase)
    }
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
        record: None,
        held: None,
        waiting: None,
        findings: 0,
        wrong: None,
    };
    if let Err(error) = look(file, &mut row).await {
        row.wrong = row.wrong.or(Some(with_code(&error)));
    }
    row
}

fn with_code(error: &Error) -> (String, u8) {
    (error.to_string(), code_of(error))
}

/// The answer of the store of a URL, if it comes in time.
async fn in_time<T>(
    url: &str,
    asking: &str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answer = tokio::time::timeout(PATIENCE, answer).await;
    answer.unwrap_or_else(|_| {
        let why = format!("no answer within {}", in_words(PATIENCE));
        Err(Error::unavailable(StoreUrl::redacted(url), asking, why))
    })
}

async fn look(file: &Config, row: &mut Row) -> Result<(), Error> {
    let begun = Instant::now();
    let url = file.url(&row.name)?;
    let engine = match &row.engine {
        Some(engine) => Arc::clone(engine),
        None => {
            let opened = in_time(&url, "opening the store", store::engine_to_inspect(&url));
            Arc::new(Breaker::new(opened.await?))
        }
    };
    row.engine = Some(Arc::clone(&engine));
    let parsed = StoreUrl::parse(&url)?;
    let locks = in_time(&url, "listing the locks", locks(&*engine, &parsed));
    let (locks, away) = locks.await?;
    row.reached = Some(begun.elapsed());
    row.wrong = away.first().map(with_code);
    if away.is_empty() {
        row.held = Some(locks.iter().map(|lock| lock.holders.len()).sum());
        row.waiting = Some(locks.iter().map(|lock| lock.waiters.len()).sum());
    }
    let looked_over = look_over(&*engine, row);
    let mut findings = in_time(&url, "looking it over", looked_over).await?;
    let purpose = file.purpose(&row.name).unwrap_or(Purpose::Correctness);
    findings.extend(url_findings(&parsed));
    findings.retain(|finding| {
        purpose == Purpose::Correctness || finding.purpose == Purpose::Efficiency
    });
    row.findings = findings.len();
    Ok(())
}

/// Reads the store's record, and what is wrong with the store.
async fn look_over(engine: &dyn Engine, row: &mut Row) -> Result<Vec<Finding>, Error> {
    let (record, found) = tokio::join!(engine.record("", None), engine.inspect().diagnose());
    match record {
        Ok(record) => row.record = serde_json::from_str(&record.text).ok(),
        // In a move, a store in which nothing is listed may be needed, too.
        Err(error) if error.is_away() => row.wrong = row.wrong.take().or(Some(with_code(&error))),
        // This user may not read the record.
        Err(_) => {}
    }
    let mut findings = engine.promises().limits.clone();
    findings.extend(found?);
    Ok(findings)
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
        "STORE", "REACHED", "VERSION", "PHASE", "BY", "HELD", "WAITING", "FINDINGS", "BREAKER",
    ];
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut lines = vec![(head.map(str::to_owned), String::new())];
    for row in rows {
        let record = row.record.as_ref();
        let by = record.and_then(|record| record.by.as_deref());
        let phase = record.and_then(Written::moves_in);
        let counted = |count: Option<usize>| known(count.map(|count| count.to_string()));
        let reached = row.reached.map(|after| format!("in {}", in_words(after)));
        let cells = [
            format!("@{}", row.name),
            reached.unwrap_or_else(|| "no".to_owned()),
            known(record.map(|record| record.version.to_string())),
            known(phase.map(|phase| phase.to_string())),
            known(by.map(one_line)),
            counted(row.held),
            counted(row.waiting),
            counted(row.reached.map(|_| row.findings)),
            row.breaker().unwrap_or("-").to_owned(),
        ];
        let wrong = row.wrong.as_ref().map(|(why, _)| one_line(why));
        lines.push((cells, wrong.unwrap_or_default()));
    }
    let widths: [usize; 9] = std::array::from_fn(|column| {
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
            "version": row.record.as_ref().map(|record| record.version),
            "phase": row.record.as_ref().and_then(Written::moves_in),
            "by": row.record.as_ref().and_then(|record| record.by.as_deref()),
            "held": row.held,
            "waiting": row.waiting,
            "breaker": row.breaker(),
            "findings": row.reached.map(|_| row.findings),
            "error": row.wrong.as_ref().map(|(why, _)| why),
        })
    });
    format!("{}\n", Value::Array(rows.collect()))
}
