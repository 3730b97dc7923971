//! Accidents that happened to people with home-made locks, on real servers: the recipe beside this library, in one
//! picture. Each must be seen to fail, and ours to hold, or to say in time that it is lost.

/// Names an accident and the function that tells it.
macro_rules! scenario {
    ($name:literal, $about:literal, $run:ident) => {
        Scenario {
            name: $name,
            about: $about,
            run: || Box::pin($run()),
        }
    };
}

mod etcd;
mod nodes;
mod redis;
mod sql;

use std::fmt::{self, Write as _};
use std::pin::Pin;
use std::time::{Duration, Instant};

use fencelock::{Client, Guard, Release};
use fencelock_testbed::{Failure, Result};

/// The lease in these stories.
const TTL: Duration = Duration::from_millis(300);
/// The lease of those who do not stall.
const LONG_LEASE: Duration = Duration::from_secs(30);
/// Surely over after this.
const PAST: Duration = Duration::from_millis(420);

const LOCK: &str = "nightly-report";

/// What both did.
type Sides = [Side; 2];
type Run = fn() -> Pin<Box<dyn Future<Output = Result<Sides>> + Send>>;

/// One accident.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    run: Run,
}

/// All of them.
pub(crate) fn all() -> impl Iterator<Item = &'static Scenario> {
    let all = [
        redis::SCENARIOS,
        nodes::SCENARIOS,
        sql::SCENARIOS,
        etcd::SCENARIOS,
    ];
    all.into_iter().flatten()
}

async fn open(url: &str) -> Result<Client> {
    let opened = fencelock::connect(url).await;
    opened.map_err(|error| Failure::new(error.to_string()))
}

/// Takes the lock for a short while: these holders stall on purpose, so nothing prolongs their leases.
async fn take(client: &Client, side: &mut Side, who: &'static str) -> Result<Guard> {
    take_for(client, side, who, TTL).await
}

/// As [`take`], with another lease.
async fn take_for(
    client: &Client,
    side: &mut Side,
    who: &'static str,
    ttl: Duration,
) -> Result<Guard> {
    let wish = client.lock(LOCK).timeout(Duration::from_secs(20)).ttl(ttl);
    let guard = wish
        .renew(false)
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    side.note(who, format!("has the lock, token {}", guard.token()));
    Ok(guard)
}

async fn let_go(guard: Guard, side: &mut Side, who: &'static str) -> Result<Release> {
    let released = guard
        .release()
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    side.note(who, format!("releases: {released:?}"));
    Ok(released)
}

/// Whether somebody gets the lock who does not wait for it.
async fn beside(client: &Client, side: &mut Side, who: &'static str) -> bool {
    let (has, what) = match client.try_lock(LOCK).ttl(Duration::from_secs(2)).await {
        Ok(_) => (true, "has it, too".to_owned()),
        Err(fencelock::Error::Held { .. }) => (false, "is told that it is held".to_owned()),
        Err(error) => (false, format!("does not get it: {error}")),
    };
    side.note(who, what);
    has
}

/// How one of the two fared.
#[derive(Debug)]
pub(crate) struct Side {
    begin: Instant,
    notes: Vec<(Duration, &'static str, String)>,
    /// What it came to: `Ok` if the lock did what a lock is for.
    end: std::result::Result<String, String>,
}

impl Side {
    fn begin() -> Self {
        Self {
            begin: Instant::now(),
            notes: Vec::new(),
            end: Err("it was not told how this ended".into()),
        }
    }

    /// What `who` did or saw.
    fn note(&mut self, who: &'static str, what: impl Into<String>) {
        self.notes.push((self.begin.elapsed(), who, what.into()));
    }

    /// The end: good if `good`.
    fn end(mut self, good: bool, what: impl Into<String>) -> Self {
        self.end = match good {
            true => Ok(what.into()),
            false => Err(what.into()),
        };
        self
    }
}

/// What a scenario came to.
#[derive(Debug)]
pub(crate) struct Outcome {
    name: &'static str,
    about: &'static str,
    naive: Side,
    ours: Side,
}

impl Outcome {
    /// Whether the recipe failed and ours did not.
    pub(crate) fn is_as_told(&self) -> bool {
        self.naive.end.is_err() && self.ours.end.is_ok()
    }
}

/// Runs the one of this name.
pub(crate) async fn run(name: &str) -> Result<Outcome> {
    let found = all().find(|scenario| scenario.name == name);
    let scenario = found
        .ok_or_else(|| Failure::new(format!("there is no scenario {name:?}; --list tells them")))?;
    let [naive, ours] = (scenario.run)().await?;
    Ok(Outcome {
        name: scenario.name,
        about: scenario.about,
        naive,
        ours,
    })
}

/// The picture: both sides, line by line, and what they came to.
impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: usize = 66;
        writeln!(f, "{}: {}", self.name, self.about)?;
        writeln!(f, "  {:<WIDTH$} | fencelock", "the recipe")?;
        let lines = |side: &Side| -> Vec<String> {
            let mut lines = Vec::new();
            for (at, who, what) in &side.notes {
                let text = format!("{:>5} ms  {who}: {what}", at.as_millis());
                lines.extend(wrap(&text, WIDTH));
            }
            lines
        };
        let (naive, ours) = (lines(&self.naive), lines(&self.ours));
        for index in 0..naive.len().max(ours.len()) {
            let line = |lines: &[String]| lines.get(index).cloned().unwrap_or_default();
            writeln!(f, "  {:<WIDTH$} | {}", line(&naive), line(&ours))?;
        }
        for (who, side) in [("the recipe", &self.naive), ("fencelock", &self.ours)] {
            match &side.end {
                Ok(what) => writeln!(f, "  {who} HELD: {what}")?,
                Err(what) => writeln!(f, "  {who} FAILED: {what}")?,
            }
        }
        Ok(())
    }
}

/// Breaks a line at blanks; what follows is indented.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        // There is always a last one.
        let Some(line) = lines.last_mut() else { break };
        if line.chars().count() + 1 + word.chars().count() > width && line.trim() != "" {
            lines.push(format!("{:12}{word}", ""));
        } else {
            if !line.is_empty() || word.is_empty() {
                line.push(' ');
            }
            let _ = line.write_str(word);
        }
    }
    lines
}
