//! The verdict and a timeline in the terminal.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::check::{Verdict, Violation, millis};
use crate::history::{End, History, Rule};

/// The columns of the timeline.
const WIDTH: usize = 96;

/// How many violations of each rule are listed.
const LISTED: usize = 5;

/// The whole report.
pub(crate) fn text(history: &History, verdict: &Verdict) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = summary(&mut out, history, verdict);
    let _ = timeline(&mut out, history, verdict);
    let _ = judgement(&mut out, history, verdict);
    out
}

fn summary(out: &mut String, history: &History, verdict: &Verdict) -> std::fmt::Result {
    let lasted = history.ended.saturating_sub(history.began);
    writeln!(
        out,
        "{} at {}, seed {}: {:.1} s, {} workers with {} tasks each on {} locks, leases of {:.1} s",
        history.engine,
        history.store,
        history.seed,
        lasted as f64 / 1e9,
        history.workers,
        history.tasks,
        history.names.len(),
        history.ttl as f64 / 1e9,
    )?;
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for fault in &history.faults {
        *kinds.entry(&fault.what).or_default() += 1;
    }
    let kinds: Vec<_> = kinds
        .iter()
        .map(|(what, n)| format!("{n} {what}"))
        .collect();
    writeln!(out, "faults    {} ({})", verdict.faults, kinds.join(", "))?;
    writeln!(
        out,
        "requests  {}: {} grants, {} errors, the longest wait {}",
        verdict.attempts,
        verdict.grants,
        verdict.errors,
        millis(verdict.longest_wait)
    )?;
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in &history.attempts {
        let end = match &attempt.end {
            End::Failed(_) => "Failed".to_owned(),
            end => format!("{end:?}"),
        };
        *ends.entry(end).or_default() += 1;
    }
    let ends: Vec<_> = ends.iter().map(|(end, n)| format!("{n} {end}")).collect();
    writeln!(out, "ends      {}", ends.join(", "))?;
    writeln!(
        out,
        "losses    reported to {} holders, at most {} after the end of their validity",
        verdict.losses,
        millis(verdict.latest_told)
    )?;
    writeln!(
        out,
        "resource  {} writes; the fence refused {}; the register without a fence lost {} updates",
        verdict.writes, verdict.refused, verdict.lost_updates
    )?;
    writeln!(
        out,
        "recovery  {} at the longest from the end of a fault to the next grant",
        millis(verdict.longest_stall)
    )
}

/// One line for each worker, and one for the servers. `#`: a task holds. `.`: no task holds. `-`: the worker is stopped
/// or dead. `X`: a promise is broken. `x`: a rule is broken that is not promised.
fn timeline(out: &mut String, history: &History, verdict: &Verdict) -> std::fmt::Result {
    let (began, ended) = (history.began, history.ended.max(history.began + 1));
    let column = |at: u64| {
        let at = at.clamp(began, ended) - began;
        ((at as u128 * WIDTH as u128 / u128::from(ended - began)) as usize).min(WIDTH - 1)
    };
    let each = (ended - began) / WIDTH as u64;
    writeln!(out, "\ntimeline, {} a column:", millis(each))?;
    let fill = |row: &mut [char], from: u64, to: u64, with: char| {
        let (from, to) = (column(from), column(to.max(from)));
        row[from..=to].fill(with);
    };
    let mut servers = ['.'; WIDTH];
    for fault in history
        .faults
        .iter()
        .filter(|f| !f.whom.starts_with("worker"))
    {
        let letter = fault.what.chars().next().unwrap_or('?');
        fill(&mut servers, fault.from, fault.to, letter);
    }
    writeln!(out, "  servers  {}", servers.iter().collect::<String>())?;
    for worker in 0..history.workers {
        let mut row = ['.'; WIDTH];
        let mine = history.attempts.iter().filter(|a| a.worker == worker);
        for (from, to) in mine.filter_map(|attempt| attempt.belief()) {
            fill(&mut row, from, to, '#');
        }
        let whom = format!("worker {worker}");
        for fault in history.faults.iter().filter(|f| f.whom == whom) {
            let stopped = matches!(fault.what.as_str(), "pause-client" | "kill-client");
            fill(
                &mut row,
                fault.from,
                fault.to,
                if stopped { '-' } else { '~' },
            );
        }
        for violation in &verdict.violations {
            let mut attempts = violation.attempts.iter();
            if attempts.any(|index| history.attempts[*index].worker == worker) {
                row[column(violation.at)] = if violation.promised() { 'X' } else { 'x' };
            }
        }
        writeln!(out, "  w{worker:<7} {}", row.iter().collect::<String>())?;
    }
    writeln!(
        out,
        "  # held, . free, - stopped or dead, ~ network or call faults, x not promised, X A BROKEN PROMISE; servers: the \
         fault's first letter"
    )
}

fn judgement(out: &mut String, history: &History, verdict: &Verdict) -> std::fmt::Result {
    writeln!(out)?;
    for trouble in &history.troubles {
        writeln!(out, "incomplete: {trouble}")?;
    }
    for rule in Rule::ALL {
        let of_rule = |v: &&Violation| v.rule == rule;
        let broken: Vec<_> = verdict.broken().filter(of_rule).collect();
        let excused: Vec<_> = verdict.excused().filter(of_rule).collect();
        let word = match (broken.is_empty(), excused.is_empty()) {
            (true, true) => "held".to_owned(),
            (true, false) => format!("broken {} times where it is not promised", excused.len()),
            (false, _) => format!("BROKEN {} times", broken.len()),
        };
        writeln!(out, "{:<12} {word}", rule.as_str())?;
        for violation in broken.iter().chain(&excused).take(LISTED) {
            let at = violation.at.saturating_sub(history.began);
            let what = &violation.what;
            match &violation.excuse {
                None => writeln!(out, "    at {}: {what}", millis(at))?,
                Some(excuse) => writeln!(out, "    at {}: {what} [{excuse}]", millis(at))?,
            }
        }
    }
    let word = match (verdict.holds(), history.troubles.is_empty()) {
        (true, true) => "every promise was kept",
        (true, false) => "every promise was kept, but the run is incomplete",
        (false, _) => "A PROMISE WAS BROKEN",
    };
    writeln!(out, "\n{word}")
}
