//! What the fenced register accepted and refused.

use super::violation::Violation;
use crate::history::{History, Rule, Write};

pub(super) fn check(history: &History, name: u32, found: &mut Vec<Violation>) {
    // A second fence on the same writes in the same order, since the register's own fence is under test.
    let (mut exclusive, mut any): (Option<&Write>, Option<&Write>) = (None, None);
    for write in history.writes.iter().filter(|write| write.name == name) {
        let attempt = history.attempts.get(write.attempt);
        let who = attempt.map_or_else(
            || "an unknown task".to_owned(),
            crate::history::Attempt::who,
        );
        let violation = |rule, other: Option<&Write>, what| Violation {
            rule,
            at: write.at,
            name: Some(name),
            attempts: other
                .map(|w| w.attempt)
                .into_iter()
                .chain([write.attempt])
                .collect(),
            what,
            excuse: None,
        };
        let mark = if write.shared { exclusive } else { any };
        if write.accepted {
            let stale = mark.filter(|mark| {
                mark.token > write.token || (mark.token == write.token && mark.claim != write.claim)
            });
            if let Some(newer) = stale {
                let what = format!(
                    "the fence took a write of {who} with token {} after one with {}",
                    write.token, newer.token
                );
                found.push(violation(Rule::Fence, Some(newer), what));
            }
            if !write.shared && exclusive.is_none_or(|mark| write.token >= mark.token) {
                exclusive = Some(write);
            }
            if any.is_none_or(|mark| write.token >= mark.token) {
                any = Some(write);
            }
            continue;
        }
        let held = attempt.and_then(crate::history::Attempt::belief);
        if held.is_some_and(|(from, to)| (from..to).contains(&write.at)) {
            let what = format!(
                "{who} held {} (token {}) and was refused by the fence, which had seen {}",
                history.names[name as usize],
                write.token,
                mark.map_or(0, |mark| mark.token)
            );
            found.push(violation(Rule::FenceOpen, mark, what));
        }
    }
}
