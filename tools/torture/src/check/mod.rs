//! Checks a history: which rules were broken, and whether the store had promised them at that moment. The history is
//! the only input.

mod beliefs;
mod queries;
mod queue;
mod resource;
#[cfg(test)]
mod tests;
mod tokens;
mod violation;

use serde::Serialize;

use queries::calm;
pub(crate) use queries::millis;
pub use violation::Violation;

use crate::history::{Attempt, End, Fault, History, Rule};

/// How long after a fault the loss of an answer may show, in nanoseconds.
const ANSWER: u64 = 1_000_000_000;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Requests.
    pub attempts: usize,
    /// Grants that were checked.
    pub grants: usize,
    /// Writes to the resource.
    pub writes: usize,
    /// Writes that the fence refused because the hold had ended.
    pub refused: usize,
    /// Updates that the unfenced register lost.
    pub lost_updates: usize,
    /// Losses that were reported to holders.
    pub losses: usize,
    /// Requests that ended with an error.
    pub errors: usize,
    /// Faults.
    pub faults: usize,
    /// The longest wait for a grant, in nanoseconds.
    pub longest_wait: u64,
    /// The longest time from the end of a fault to the next grant of a lock that a task waited for, in nanoseconds.
    pub longest_stall: u64,
    /// The longest time from the end of a validity to the report of the loss, in nanoseconds. Stopped processes do not
    /// count.
    pub latest_told: u64,
    /// The violations, sorted by time.
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

/// Checks a history.
#[must_use]
pub fn check(history: &History) -> Verdict {
    let mut found = Vec::new();
    for name in 0..history.names.len() as u32 {
        beliefs::check(history, name, &mut found);
        tokens::check(history, name, &mut found);
        resource::check(history, name, &mut found);
        queue::check(history, name, &mut found);
    }
    let longest_stall = queue::progress(history, &mut found);
    leaks(history, &mut found);
    losses(history, &mut found);
    late(history, &mut found);
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

/// Why the store had not promised the rule, if so.
fn excuse(history: &History, violation: &Violation) -> Option<String> {
    match violation.rule {
        Rule::Queue | Rule::Starvation if !history.promised.fifo => {
            return Some("this store keeps no order".into());
        }
        _ => {}
    }
    // Tokens always rise from grant to grant, with one exception. When the store has granted a held lock to another process,
    // the first process may not know it yet. It may still hand on the rest of its range of tokens. The fence refuses these.
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

/// Whether another task of the same process has handed the lock on.
fn is_handed_on(history: &History, index: usize) -> bool {
    let attempt = &history.attempts[index];
    let earlier = |other: &Attempt| other.claim == attempt.claim && other.token < attempt.token;
    attempt.claim.is_some() && history.attempts.iter().any(earlier)
}

/// What late requests caused.
fn late(history: &History, found: &mut Vec<Violation>) {
    for late in &history.late {
        let name = history.names.iter().position(|name| *name == late.name);
        found.push(Violation {
            rule: Rule::Late,
            at: late.at,
            name: name.and_then(|name| u32::try_from(name).ok()),
            attempts: Vec::new(),
            what: format!("{}: {}", late.name, late.what),
            excuse: None,
        });
    }
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
    // Every request of a process that was not killed must have ended.
    for (index, attempt) in history.attempts.iter().enumerate() {
        if attempt.end == End::Open {
            found.push(Violation {
                rule: Rule::Leak,
                at: history.ended,
                name: Some(attempt.name),
                attempts: vec![index],
                what: format!("{} never came back from its request", attempt.who()),
                excuse: None,
            });
        }
        let until = attempt.valid.unwrap_or(0);
        // A repeated release, after a lost answer, finds the claim gone.
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
                // The lock was taken away before this instant.
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

/// A holder that is told of a loss before its lease is over, while there is no fault and none has just ended.
fn losses(history: &History, found: &mut Vec<Violation>) {
    for (index, attempt) in history.attempts.iter().enumerate() {
        let (Some(granted), Some(told), Some(valid)) =
            (attempt.granted, attempt.told, attempt.valid)
        else {
            continue;
        };
        if told < valid && calm(history, granted, told) {
            found.push(Violation {
                rule: Rule::Kept,
                at: told,
                name: Some(attempt.name),
                attempts: vec![index],
                what: format!(
                    "{} was to hold for {} more when it was told that its lock was lost",
                    attempt.who(),
                    millis(valid - told)
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
