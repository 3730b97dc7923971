//! Waiters are served in order, in time, and again after the last fault.

use super::queries::{calm, millis, of_name, waits};
use super::violation::Violation;
use crate::history::{Claimed, End, History, Rule};

/// A wait without success counts as starvation after this many grants to others.
const PASSED_OVER: usize = 50;

pub(super) fn check(history: &History, name: u32, found: &mut Vec<Violation>) {
    order(history, name, found);
    starvation(history, name, found);
}

/// Of two queued claims, the one that was queued before the other was sent must be granted first.
fn order(history: &History, name: u32, found: &mut Vec<Violation>) {
    let of_this = |claim: &&Claimed| claim.name == name && !claim.shared;
    let mut claims: Vec<_> = history
        .claims
        .iter()
        .filter(of_this)
        .filter_map(|claim| {
            let (at, token) = claim.held?;
            Some((claim, at, token))
        })
        .collect();
    // In the order of grants: a claim must not have been queued before a claim was sent that was granted earlier. So the
    // latest `placed` of the earlier grants counts.
    claims.sort_by_key(|(_, _, token)| *token);
    let mut latest: Option<(&Claimed, u64)> = None;
    for (claim, at, token) in claims {
        if let (Some((other, granted)), Some(stood)) = (latest, claim.stood)
            && stood < other.placed
            && claim.worker != other.worker
            && calm(history, stood, granted.max(at))
        {
            found.push(Violation {
                rule: Rule::Queue,
                at: granted,
                name: Some(name),
                attempts: attempts_of(history, &[other, claim]),
                what: format!(
                    "worker {} was served before worker {} (token {token}), which had been queued for {} when the first was sent",
                    other.worker,
                    claim.worker,
                    millis(other.placed - stood)
                ),
                excuse: None,
            });
        }
        if claim.stood.is_some() && latest.is_none_or(|(other, _)| claim.placed > other.placed) {
            latest = Some((claim, at));
        }
    }
}

fn attempts_of(history: &History, claims: &[&Claimed]) -> Vec<usize> {
    let is_of = |claim: &Claimed| {
        let mut all = history.attempts.iter();
        all.position(|attempt| attempt.claim.as_deref() == Some(claim.id.as_str()))
    };
    claims.iter().filter_map(|claim| is_of(claim)).collect()
}

/// A task waited without success and without faults, while others were granted the lock again and again.
fn starvation(history: &History, name: u32, found: &mut Vec<Violation>) {
    let mut grants: Vec<u64> = of_name(history, name)
        .filter_map(|(_, attempt)| attempt.granted)
        .collect();
    grants.sort_unstable();
    for (index, attempt) in of_name(history, name) {
        let over = attempt.over.unwrap_or(attempt.asked);
        if attempt.end != End::TimedOut
            || !waits(attempt.how)
            || !calm(history, attempt.asked, over)
        {
            continue;
        }
        let before = |instant: u64| grants.partition_point(|at| *at < instant);
        let others = before(over).saturating_sub(before(attempt.asked));
        let bound = PASSED_OVER.max(4 * history.workers.saturating_mul(history.tasks) as usize);
        if others >= bound {
            found.push(Violation {
                rule: Rule::Starvation,
                at: over,
                name: Some(name),
                attempts: vec![index],
                what: format!(
                    "{} waited for {} without success while others were granted {} {others} times",
                    attempt.who(),
                    millis(over.saturating_sub(attempt.asked)),
                    history.names[name as usize],
                ),
                excuse: None,
            });
        }
    }
}

/// How long it took after each fault until a lock was granted that a task waited for. After the last fault there is a
/// limit. Returns the longest time.
pub(super) fn progress(history: &History, found: &mut Vec<Violation>) -> u64 {
    let mut longest = 0;
    let mut ends: Vec<u64> = history.faults.iter().map(|fault| fault.to).collect();
    ends.sort_unstable();
    let healed = ends.last().copied().unwrap_or(history.began);
    ends.retain(|end| {
        // Only ends at which no other fault was active.
        !history.faults.iter().any(|f| f.from <= *end && *end < f.to)
    });
    if ends.last() != Some(&healed) {
        ends.push(healed);
    }
    for name in 0..history.names.len() as u32 {
        let mut grants: Vec<u64> = of_name(history, name)
            .filter_map(|(_, attempt)| attempt.granted)
            .collect();
        grants.sort_unstable();
        let waiting = of_name(history, name).filter(|(_, attempt)| waits(attempt.how));
        let waiting: Vec<(usize, u64, u64)> = waiting
            .map(|(index, a)| {
                (
                    index,
                    a.asked,
                    a.granted.or(a.over).unwrap_or(history.ended),
                )
            })
            .collect();
        for &end in &ends {
            let at = grants.partition_point(|at| *at <= end);
            let next = grants.get(at).copied();
            let until = next.unwrap_or(history.ended);
            // The task that had waited longest when the fault ended.
            let waiter = waiting
                .iter()
                .find(|(_, from, to)| *from <= end && end < *to);
            let Some(&(index, _, gave_up)) = waiter else {
                continue;
            };
            let stall = until.min(gave_up.max(end)).saturating_sub(end);
            let another = history
                .faults
                .iter()
                .any(|f| f.from > end && f.from < until);
            if another {
                continue;
            }
            longest = longest.max(stall);
            if end == healed && until.saturating_sub(end) > history.recovery {
                found.push(Violation {
                    rule: Rule::Progress,
                    at: end.saturating_add(history.recovery),
                    name: Some(name),
                    attempts: vec![index],
                    what: format!(
                        "{} was not granted for {} after the last fault, though {} waited",
                        history.names[name as usize],
                        millis(until - end),
                        history.attempts[index].who()
                    ),
                    excuse: None,
                });
            }
        }
    }
    longest
}
