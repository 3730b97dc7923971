//! No token twice, and tokens rise in real time.

use std::collections::HashMap;

use super::queries::of_name;
use super::violation::Violation;
use crate::history::{Attempt, History, Rule};

pub(super) fn check(history: &History, name: u32, found: &mut Vec<Violation>) {
    let granted = of_name(history, name)
        .filter_map(|(index, attempt)| Some((index, attempt, attempt.granted?, attempt.token?)));
    let mut known: Vec<_> = granted.collect();
    let violation = |rule, at, attempts: [usize; 2], what| Violation {
        rule,
        at,
        name: Some(name),
        attempts: attempts.into(),
        what,
        excuse: None,
    };
    let text = |attempt: &Attempt, token: u64| format!("{} (token {token})", attempt.who());

    let mut owners: HashMap<u64, (usize, &Attempt)> = HashMap::new();
    for &(index, attempt, at, token) in &known {
        if let Some((other, before)) = owners.insert(token, (index, attempt)) {
            let what = format!(
                "token {token} was given to {} and to {}",
                before.who(),
                attempt.who()
            );
            found.push(violation(Rule::TokenOnce, at, [other, index], what));
        }
    }

    // Sorted by the instant of the request, and by the instant when the grant was known.
    let mut asked = known.clone();
    asked.sort_by_key(|(_, attempt, _, _)| attempt.asked);
    known.sort_by_key(|(_, _, at, _)| *at);
    let mut known = known.into_iter().peekable();
    // The highest known token, of exclusive holders and of all.
    let mut highest: [Option<(usize, &Attempt, u64)>; 2] = [None, None];
    for (index, attempt, at, token) in asked {
        while let Some((before, other, _, token)) =
            known.next_if(|(_, _, known, _)| *known < attempt.asked)
        {
            for (kind, counts) in [!other.shared, true].into_iter().enumerate() {
                if counts && highest[kind].is_none_or(|(_, _, high)| token > high) {
                    highest[kind] = Some((before, other, token));
                }
            }
        }
        if let Some((before, other, high)) = highest[usize::from(!attempt.shared)]
            && high > token
        {
            let what = format!(
                "{} asked after {} was known to hold, and its token is lower",
                text(attempt, token),
                text(other, high)
            );
            found.push(violation(Rule::TokenOrder, at, [before, index], what));
        }
    }
}
