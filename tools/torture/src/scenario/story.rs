//! What a scenario consists of: two sides, the steps that they share, and the picture of both.

use std::fmt::{self, Write as _};
use std::pin::Pin;
use std::time::{Duration, Instant};

use fencelock::{Client, Guard, Release};
use fencelock_testbed::{Failure, Result};

/// The ttl in these scenarios.
pub(super) const TTL: Duration = Duration::from_millis(300);
/// The ttl of holders that do not stall.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(30);
/// Longer than the ttl.
pub(super) const PAST: Duration = Duration::from_millis(420);

pub(super) const LOCK: &str = "nightly-report";

/// The recipe and this library.
pub(super) type Sides = [Side; 2];
pub(super) type Run = fn() -> Pin<Box<dyn Future<Output = Result<Sides>> + Send>>;

/// One accident.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(super) run: Run,
}

pub(super) async fn open(url: &str) -> Result<Client> {
    let opened = fencelock::connect(url).await;
    opened.map_err(|error| Failure::new(error.to_string()))
}

/// Acquires the lock without renewals: these holders stall on purpose.
pub(super) async fn take(client: &Client, side: &mut Side, who: &'static str) -> Result<Guard> {
    take_for(client, side, who, TTL).await
}

/// As [`take`], with another ttl.
pub(super) async fn take_for(
    client: &Client,
    side: &mut Side,
    who: &'static str,
    ttl: Duration,
) -> Result<Guard> {
    let request = client.lock(LOCK).timeout(Duration::from_secs(20)).ttl(ttl);
    let guard = request
        .renew(false)
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    side.note(who, format!("has the lock, token {}", guard.token()));
    Ok(guard)
}

pub(super) async fn let_go(guard: Guard, side: &mut Side, who: &'static str) -> Result<Release> {
    let released = guard
        .release()
        .await
        .map_err(|e| Failure::new(e.to_string()))?;
    side.note(who, format!("releases: {released:?}"));
    Ok(released)
}

/// Whether a client gets the lock without a wait.
pub(super) async fn beside(client: &Client, side: &mut Side, who: &'static str) -> bool {
    let (has, what) = match client.try_lock(LOCK).ttl(Duration::from_secs(2)).await {
        Ok(_) => (true, "has it, too".to_owned()),
        Err(fencelock::Error::Held { .. }) => (false, "learns that it is held".to_owned()),
        Err(error) => (false, format!("does not get it: {error}")),
    };
    side.note(who, what);
    has
}

/// One of the two sides.
#[derive(Debug)]
pub(crate) struct Side {
    pub(super) begin: Instant,
    notes: Vec<(Duration, &'static str, String)>,
    /// The end: `Ok` if the lock worked.
    end: std::result::Result<String, String>,
}

impl Side {
    pub(super) fn begin() -> Self {
        Self {
            begin: Instant::now(),
            notes: Vec::new(),
            end: Err("the end was not recorded".into()),
        }
    }

    /// Records what `who` did or saw.
    pub(super) fn note(&mut self, who: &'static str, what: impl Into<String>) {
        self.notes.push((self.begin.elapsed(), who, what.into()));
    }

    /// Records the end.
    pub(super) fn end(mut self, good: bool, what: impl Into<String>) -> Self {
        self.end = match good {
            true => Ok(what.into()),
            false => Err(what.into()),
        };
        self
    }
}

/// The result of a scenario.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) naive: Side,
    pub(super) ours: Side,
}

impl Outcome {
    /// Whether the recipe failed and this library did not.
    pub(crate) fn is_as_expected(&self) -> bool {
        self.naive.end.is_err() && self.ours.end.is_ok()
    }
}

/// Both sides, line by line, and their ends.
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

/// Breaks a line at spaces, with the rest indented.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
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
