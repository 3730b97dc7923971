//! The page: one file, with a timeline of every task.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::check::Verdict;
use crate::history::{Fault, History};
use crate::report::text;

/// The maximum number of bars, since more make the page slow. Bars in violations are always shown.
const BARS: usize = 40_000;

/// The locks' colours.
const COLOURS: [&str; 6] = [
    "#20507a", "#2d7d46", "#6a4c93", "#8a5a2b", "#3b7080", "#555555",
];

/// The page as text.
pub(crate) fn page(history: &History, verdict: &Verdict) -> String {
    // The data must not contain the end of the script element.
    let data = data(history, verdict).to_string().replace("</", "<\\/");
    include_str!("page.html").replacen("/*DATA*/", &data, 1)
}

fn data(history: &History, verdict: &Verdict) -> Value {
    let (beliefs, cut) = beliefs(history, verdict);
    let violations = verdict.violations.iter().map(|v| {
        let what = match &v.excuse {
            None => v.what.clone(),
            Some(excuse) => format!("{} (not promised: {excuse})", v.what),
        };
        json!({"at": micros(history, v.at), "rule": v.rule, "what": what, "broken": v.promised()})
    });
    let rows = (0..history.workers)
        .flat_map(|worker| (0..history.tasks).map(move |task| format!("w{worker}.{task}")));
    json!({
        "title": format!("fencelock torture: {}, seed {}", history.engine, history.seed),
        "text": text::text(history, verdict),
        "cut": cut,
        "length": micros(history, history.ended.max(history.began + 1000)),
        "rows": rows.collect::<Vec<_>>(),
        "names": history.names,
        "colours": COLOURS,
        "beliefs": beliefs,
        "faults": faults(history),
        "violations": violations.collect::<Vec<_>>(),
    })
}

/// Microseconds from the beginning of the run.
fn micros(history: &History, nanos: u64) -> u64 {
    nanos.saturating_sub(history.began) / 1000
}

/// The bars of the timeline, and a remark if some bars are left out.
fn beliefs(history: &History, verdict: &Verdict) -> (Vec<Value>, String) {
    let mut bad: HashMap<usize, u8> = HashMap::new();
    for violation in &verdict.violations {
        for index in &violation.attempts {
            let how = 1 + u8::from(violation.promised());
            let worst = bad.entry(*index).or_default();
            *worst = how.max(*worst);
        }
    }
    let attempts = history.attempts.iter().enumerate();
    let believed = attempts.filter_map(|(index, attempt)| {
        let (from, to) = attempt.belief()?;
        Some((index, attempt, from, to))
    });
    let all: Vec<_> = believed.collect();
    let step = all.len().div_ceil(BARS).max(1);
    let shown = all.iter().enumerate();
    let shown = shown.filter(|(n, (index, ..))| n % step == 0 || bad.contains_key(index));
    let bars = shown.map(|(_, (index, attempt, from, to))| {
        json!([
            attempt.worker * history.tasks + attempt.task,
            micros(history, *from),
            micros(history, *to),
            attempt.token,
            u8::from(attempt.shared),
            bad.get(index).copied().unwrap_or(0),
            attempt.name,
            format!("{:?}", attempt.end)
        ])
    });
    let cut = match step {
        1 => String::new(),
        _ => format!(
            "Of {} beliefs one in {step} is shown, and all in violations.",
            all.len()
        ),
    };
    (bars.collect(), cut)
}

fn faults(history: &History) -> Vec<Value> {
    let fault = |fault: &Fault| {
        let worker: Option<u32> = fault
            .whom
            .strip_prefix("worker ")
            .and_then(|n| n.parse().ok());
        let row = worker.map_or(-1, |worker| i64::from(worker * history.tasks));
        json!({
            "what": fault.what,
            "whom": fault.whom,
            "from": micros(history, fault.from),
            "to": micros(history, fault.to),
            "row": row,
            "rows": history.tasks,
        })
    };
    history.faults.iter().map(fault).collect()
}
