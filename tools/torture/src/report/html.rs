//! The page: one file, with a timeline of every task.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::check::Verdict;
use crate::history::{Attempt, History};
use crate::report::text;

/// More bars than this make a page slow; those without a violation are left out from here on.
const BARS: usize = 40_000;

/// The locks' colours.
const COLOURS: [&str; 6] = [
    "#20507a", "#2d7d46", "#6a4c93", "#8a5a2b", "#3b7080", "#555555",
];

/// The page as text.
pub(crate) fn page(history: &History, verdict: &Verdict) -> String {
    // No text of the run can end the script early.
    let data = data(history, verdict).to_string().replace("</", "<\\/");
    include_str!("page.html").replacen("/*DATA*/", &data, 1)
}

fn data(history: &History, verdict: &Verdict) -> Value {
    // Microseconds from the beginning.
    let at = |nanos: u64| nanos.saturating_sub(history.began) / 1000;
    let row = |attempt: &Attempt| attempt.worker * history.tasks + attempt.task;
    let mut bad: HashMap<usize, u8> = HashMap::new();
    for violation in &verdict.violations {
        for index in &violation.attempts {
            let how = 1 + u8::from(violation.promised());
            let worst = bad.entry(*index).or_default();
            *worst = how.max(*worst);
        }
    }
    let beliefs = history
        .attempts
        .iter()
        .enumerate()
        .filter_map(|(index, attempt)| {
            let (from, to) = attempt.belief()?;
            Some((index, attempt, from, to))
        });
    let all: Vec<_> = beliefs.collect();
    // Every so many-th, and all that have to do with a violation.
    let step = all.len().div_ceil(BARS).max(1);
    let shown = all
        .iter()
        .enumerate()
        .filter(|(n, (index, ..))| n % step == 0 || bad.contains_key(index));
    let shown: Vec<Value> = shown
        .map(|(_, (index, attempt, from, to))| {
            let bad = bad.get(index).copied().unwrap_or(0);
            let end = format!("{:?}", attempt.end);
            let shared = u8::from(attempt.shared);
            let token = attempt.token;
            json!([
                row(attempt),
                at(*from),
                at(*to),
                token,
                shared,
                bad,
                attempt.name,
                end
            ])
        })
        .collect();
    let faults: Vec<Value> = history
        .faults
        .iter()
        .map(|fault| {
            let worker: Option<u32> =
                fault.whom.strip_prefix("worker ").and_then(|n| n.parse().ok());
            let row = worker.map_or(-1, |worker| i64::from(worker * history.tasks));
            json!({
                "what": fault.what, "whom": fault.whom, "from": at(fault.from), "to": at(fault.to), "row": row,
                "rows": history.tasks,
            })
        })
        .collect();
    let violations: Vec<Value> = verdict
        .violations
        .iter()
        .map(|v| {
            let what = match &v.excuse {
                None => v.what.clone(),
                Some(excuse) => format!("{} (not promised: {excuse})", v.what),
            };
            json!({"at": at(v.at), "rule": v.rule, "what": what, "broken": v.promised()})
        })
        .collect();
    let rows = (0..history.workers)
        .flat_map(|worker| (0..history.tasks).map(move |task| format!("w{worker}.{task}")));
    json!({
        "title": format!("fencelock torture: {}, seed {}", history.engine, history.seed),
        "text": text::text(history, verdict),
        "cut": if step > 1 { format!("Of {} beliefs every {step}th is shown, and all in violations.", all.len()) } else { String::new() },
        "length": at(history.ended.max(history.began + 1000)),
        "rows": rows.collect::<Vec<_>>(),
        "names": history.names,
        "colours": COLOURS,
        "beliefs": shown,
        "faults": faults,
        "violations": violations,
    })
}
