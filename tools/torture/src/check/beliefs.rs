//! Two tasks never believe that they hold at the same time.

use super::queries::{millis, of_name};
use super::violation::Violation;
use crate::history::{Attempt, End, History, Rule};

/// The time in which a task believed that it held, and its attempt.
#[derive(Clone, Copy)]
struct Belief<'a> {
    index: usize,
    attempt: &'a Attempt,
    from: u64,
    to: u64,
}

pub(super) fn check(history: &History, name: u32, found: &mut Vec<Violation>) {
    let beliefs = of_name(history, name).filter_map(|(index, attempt)| {
        let (from, to) = attempt.belief()?;
        Some(Belief {
            index,
            attempt,
            from,
            to,
        })
    });
    let mut beliefs: Vec<_> = beliefs.collect();
    beliefs.sort_by_key(|belief| (belief.from, belief.to));
    // The earlier beliefs that matter: those that end last, of exclusive holders and of all, and the one with the
    // highest token.
    let mut last: [Option<Belief<'_>>; 2] = [None, None];
    let mut highest: [Option<Belief<'_>>; 2] = [None, None];
    for belief in beliefs {
        let kind = usize::from(!belief.attempt.shared);
        if let Some(before) = last[kind].filter(|before| before.to > belief.from) {
            found.push(overlap(history, name, before, belief));
        } else if let Some(before) = highest[kind]
            && before.attempt.token >= belief.attempt.token
            && belief.attempt.asked < before.from
        {
            found.push(within(history, name, before, belief));
        }
        for (kind, counts) in [!belief.attempt.shared, true].into_iter().enumerate() {
            if counts && last[kind].is_none_or(|before| belief.to > before.to) {
                last[kind] = Some(belief);
            }
            if counts
                && highest[kind].is_none_or(|before| belief.attempt.token > before.attempt.token)
            {
                highest[kind] = Some(belief);
            }
        }
    }
}

fn overlap(history: &History, name: u32, before: Belief<'_>, belief: Belief<'_>) -> Violation {
    // Either the first lease ended and the next grant came too early, or both held at the same time.
    let timed_out = matches!(before.attempt.end, End::Expired | End::NotOwner)
        || before.attempt.told.is_some()
        || before.attempt.valid == Some(before.to);
    let rule = match timed_out {
        true => Rule::LossFirst,
        false => Rule::Exclusion,
    };
    let together = before.to.min(belief.to) - belief.from;
    Violation {
        rule,
        at: belief.from,
        name: Some(name),
        attempts: vec![before.index, belief.index],
        what: format!(
            "{} (token {}) was granted {} while {} (token {}) believed to hold it, for {} together",
            belief.attempt.who(),
            belief.attempt.token.unwrap_or(0),
            history.names[name as usize],
            before.attempt.who(),
            before.attempt.token.unwrap_or(0),
            millis(together)
        ),
        excuse: None,
    }
}

/// The beliefs do not overlap, but the grants do: the earlier belief has the later token.
fn within(history: &History, name: u32, before: Belief<'_>, belief: Belief<'_>) -> Violation {
    Violation {
        rule: Rule::Exclusion,
        at: belief.from,
        name: Some(name),
        attempts: vec![before.index, belief.index],
        what: format!(
            "{} (token {}) held {} before {} (token {}) did, whose grant is the older one",
            before.attempt.who(),
            before.attempt.token.unwrap_or(0),
            history.names[name as usize],
            belief.attempt.who(),
            belief.attempt.token.unwrap_or(0),
        ),
        excuse: None,
    }
}
