//! Judges a history: what went against which rule, and whether the store had promised that rule at that moment. Knows
//! nothing but the history.

mod beliefs;
mod line;
mod resource;
#[cfg(test)]
mod tests;
mod tokens;

use std::fmt;

use serde::Serialize;

use crate::history::{Attempt, End, Fault, History, How, Rule};

/// For how long after a fault an answer may turn out to be lost, in nanoseconds.
const ANSWER: u64 = 1_000_000_000;

/// Something that went against a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// When, in nanoseconds of the boot clock.
    pub at: u64,
    /// Which of [`History::names`]; `None` if it is about all.
    pub name: Option<u32>,
    /// Which of [`History::attempts`] have to do with it.
    pub attempts: Vec<usize>,
    /// What happened.
    pub what: String,
    /// Why the store had not promised otherwise; `None`: it had, and the promise is broken.
    pub excuse: Option<String>,
}

impl Violation {
    /// A run that was not complete proves nothing, so it counts against the store.
    pub(crate) fn incomplete(why: &str) -> Self {
        Self {
            rule: Rule::Progress,
            at: 0,
            name: None,
            attempts: Vec::new(),
            what: format!("the run was not complete: {why}"),
            excuse: None,
        }
    }

    /// Whether a promise is broken.
    #[must_use]
    pub fn promised(&self) -> bool {
        self.excuse.is_none()
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)?;
        match &self.excuse {
            None => write!(f, " (PROMISED)"),
            Some(excuse) => write!(f, " (not promised: {excuse})"),
        }
    }
}

/// What a history comes to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Wishes.
    pub attempts: usize,
    /// Grants that were checked.
    pub grants: usize,
    /// Writes that came to the resource.
    pub writes: usize,
    /// Writes of somebody whose time was over, which the fence refused.
    pub refused: usize,
    /// Updates that the unfenced register lost.
    pub lost_updates: usize,
    /// Holders who were told of a loss.
    pub losses: usize,
    /// Wishes that ended with an error.
    pub errors: usize,
    /// Faults.
    pub faults: usize,
    /// The longest wait for a grant, in nanoseconds.
    pub longest_wait: u64,
    /// The longest time from the end of a fault to the next grant of a lock for which somebody waited, in nanoseconds.
    pub longest_stall: u64,
    /// How late after the end of its validity a holder whose process ran was told of the loss, at most, in nanoseconds.
    pub latest_told: u64,
    /// What went against the rules, by time.
    pub violations: Vec<Violation>,
}

impl Verdict {
    /// Violations of promises.
    pub fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|v| v.promised())
    }

    /// Violations of what was not promised.
    pub fn excused(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|v| !v.promised())
    }

    /// Whether every promise was kept.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken().next().is_none()
    }
}

/// Judges a history.
#[must_use]
pub fn check(history: &History) -> Verdict {
    let mut found = Vec::new();
    for name in 0..history.names.len() as u32 {
        beliefs::check(history, name, &mut found);
        tokens::check(history, name, &mut found);
        resource::check(history, name, &mut found);
        line::check(history, name, &mut found);
    }
    let longest_stall = line::progress(history, &mut found);
    leaks(history, &mut found);
    for violation in &mut found {
        violation.excuse = excuse(history, violation);
    }
    found.sort_by_key(|violation| violation.at);
    let granted = || history.attempts.iter().filter(|a| a.granted.is_some());
    let wait = |a: &Attempt| a.granted.unwrap_or(a.asked).saturating_sub(a.asked);
    Verdict {
        attempts: history.attempts.len(),
        grants: granted().count(),
        writes: history.writes.len(),
        refused: history.writes.iter().filter(|w| !w.accepted).count(),
        lost_updates: history.writes.iter().filter(|w| w.lost_update).count(),
        losses: granted().filter(|a| a.told.is_some()).count(),
        errors: history
            .attempts
            .iter()
            .filter(|a| matches!(a.end, End::Failed(_) | End::Unconfirmed))
            .count(),
        faults: history.faults.len(),
        longest_wait: granted().map(wait).max().unwrap_or(0),
        longest_stall,
        latest_told: latest_told(history),
        violations: found,
    }
}

/// What was not promised, and why.
fn excuse(history: &History, violation: &Violation) -> Option<String> {
    match violation.rule {
        Rule::Line | Rule::Starvation if !history.promised.fifo => {
            return Some("this store keeps no order".into());
        }
        _ => {}
    }
    // Tokens rise from grant to grant of the store, whatever happens. Within a grant that the store has given away a
    // second time, the process that does not know yet may hand on what is left of its range; the fence refuses that.
    let handed_on = violation.rule == Rule::TokenOrder
        && violation
            .attempts
            .last()
            .is_some_and(|index| is_handed_on(history, *index));
    let rule = match handed_on {
        true => Rule::Exclusion,
        false => violation.rule,
    };
    let fault = history.faults.iter().chain(&history.befell).find(|fault| {
        fault.excuses.contains(&rule)
            && (fault.from..=fault.to.saturating_add(history.aftermath)).contains(&violation.at)
    })?;
    Some(format!("{} of {}: {}", fault.what, fault.whom, fault.why))
}

/// Whether a lock came from another task of its process.
fn is_handed_on(history: &History, index: usize) -> bool {
    let attempt = &history.attempts[index];
    let earlier = |other: &Attempt| other.claim == attempt.claim && other.token < attempt.token;
    attempt.claim.is_some() && history.attempts.iter().any(earlier)
}

fn leaks(history: &History, found: &mut Vec<Violation>) {
    for left in &history.left {
        found.push(Violation {
            rule: Rule::Leak,
            at: history.ended,
            name: None,
            attempts: Vec::new(),
            what: format!("at the end there was {left}"),
            excuse: None,
        });
    }
    // Whatever a process that was not killed began, it must also have ended.
    for (index, attempt) in history.attempts.iter().enumerate() {
        if attempt.end == End::Open {
            found.push(Violation {
                rule: Rule::Leak,
                at: history.ended,
                name: Some(attempt.name),
                attempts: vec![index],
                what: format!("{} never came back from its wish", attempt.who()),
                excuse: None,
            });
        }
        let until = attempt.valid.unwrap_or(0);
        // A release whose answer was lost finds nothing of its own when it is repeated.
        let (left, over) = (attempt.until.unwrap_or(0), attempt.over.unwrap_or(0));
        let strikes = |fault: &Fault| {
            fault.excuses.is_empty()
                && fault.from <= over
                && fault.to.saturating_add(ANSWER) >= left
        };
        if attempt.end == End::NotOwner
            && !history.faults.iter().any(strikes)
            && attempt.told.is_none()
            && attempt.over.is_some_and(|over| over < until)
        {
            found.push(Violation {
                rule: Rule::Kept,
                // It was taken before this at the latest; a clock may have jumped while the release was under way.
                at: over,
                name: Some(attempt.name),
                attempts: vec![index],
                what: format!(
                    "{} was to hold for {} more when it released, and the lock was not its own",
                    attempt.who(),
                    millis(until.saturating_sub(attempt.over.unwrap_or(until)))
                ),
                excuse: None,
            });
        }
    }
}

fn latest_told(history: &History) -> u64 {
    let mut latest = 0;
    for attempt in &history.attempts {
        let (Some(told), Some(valid)) = (attempt.told, attempt.valid) else {
            continue;
        };
        let paused = |fault: &Fault| {
            fault.whom == format!("worker {}", attempt.worker)
                && fault.from <= told
                && fault.to.saturating_add(50_000_000) >= valid
        };
        if !history.faults.iter().any(paused) {
            latest = latest.max(told.saturating_sub(valid));
        }
    }
    latest
}

/// Whether nothing was wrong from `from` to `to`, consequences of what was wrong before included.
fn calm(history: &History, from: u64, to: u64) -> bool {
    let strikes =
        |fault: &Fault| fault.from <= to && fault.to.saturating_add(history.aftermath) >= from;
    !history.faults.iter().any(strikes)
}

/// The attempts of one name with their numbers.
fn of_name(history: &History, name: u32) -> impl Iterator<Item = (usize, &Attempt)> {
    let all = history.attempts.iter().enumerate();
    all.filter(move |(_, attempt)| attempt.name == name)
}

/// For people.
pub(crate) fn millis(nanos: u64) -> String {
    format!("{}.{:01} ms", nanos / 1_000_000, nanos / 100_000 % 10)
}

/// Whether a wish is one that stands in line until it is served.
fn waits(how: How) -> bool {
    matches!(how, How::Wait | How::DropGuard | How::Overstay)
}
