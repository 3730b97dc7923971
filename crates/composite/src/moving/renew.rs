//! How a hold goes on: the stores that it needs renew it. The other store follows in the background. If that store did not
//! belong to the name when the hold began, the claim is placed there.

use std::sync::Arc;

use fencelock_core::engine::{Claim, Grant, HeldClaim, Renewal, Standing};
use fencelock_core::{BootInstant, Error, LeaseKind, Token};
use futures_util::future::join_all;
use tokio::sync::OwnedMutexGuard;

use crate::known::Route;
use crate::moving::acquire::{at_store, place_half};
use crate::moving::entry::{Entry, Half, is_valid};
use crate::moving::knowledge::Now;
use crate::moving::state::State;

/// A hold of a batch.
#[derive(Clone)]
struct Job {
    /// Its place in the batch.
    at: usize,
    entry: Arc<Entry>,
    held: HeldClaim,
}

/// What a store answered for one hold.
enum Answer {
    Kept {
        counted_from: BootInstant,
        lease: std::time::Duration,
        asked: bool,
    },
    Lost(Option<LeaseKind>),
    Unknown(Error),
}

pub(crate) async fn renew(state: &Arc<State>, held: &[HeldClaim]) -> Vec<Renewal> {
    let now = match state.known() {
        Ok(now) => now,
        Err(error) => {
            let why = error.to_string();
            let unknown = |held: &HeldClaim| unknown(state, &held.claim, why.clone());
            return held.iter().map(unknown).collect();
        }
    };
    let mut answers: Vec<Vec<Answer>> = held.iter().map(|_| Vec::new()).collect();
    let mut needed: Vec<Vec<Job>> = state.ids.iter().map(|_| Vec::new()).collect();
    let mut behind = needed.clone();
    for (at, held) in held.iter().enumerate() {
        let Some((entry, route)) = plan(state, &now, held, &mut answers[at]) else {
            continue;
        };
        for store in route.stores() {
            let job = Job {
                at,
                entry: Arc::clone(&entry),
                held: held.clone(),
            };
            match route.needs(store) {
                true => needed[store].push(job),
                false => behind[store].push(job),
            }
        }
    }
    follow(state, behind);
    let asked = needed
        .iter()
        .enumerate()
        .filter(|(_, jobs)| !jobs.is_empty());
    let asked = asked.map(|(store, jobs)| renew_needed(state, store, jobs));
    for (at, answer) in join_all(asked).await.into_iter().flatten() {
        answers[at].push(answer);
    }
    let ends = ends(state, &now);
    let claims = held.iter().map(|held| &held.claim);
    let renewals = answers.into_iter().zip(claims);
    renewals
        .map(|(answers, claim)| together(state, ends, claim, answers))
        .collect()
}

/// Until when knowledge carries a hold, by the version with which the stores were chosen. A later version may need other
/// stores.
fn ends(state: &State, now: &Now) -> BootInstant {
    match state.knowledge.now() {
        Some(latest) if latest.known.version == now.known.version => latest.ends(),
        _ => now.ends(),
    }
}

/// The claim as this process knows it, and its route.
fn plan(
    state: &State,
    now: &Now,
    held: &HeldClaim,
    answers: &mut Vec<Answer>,
) -> Option<(Arc<Entry>, Route)> {
    // Only the process of a claim renews it, on a set that moves. A late renewal may be for an earlier grant.
    let entry = state.entry(&held.claim.id);
    let Some(entry) = entry.filter(|entry| !entry.is_other(held)) else {
        answers.push(Answer::Lost(None));
        return None;
    };
    match state.route(&now.known, &held.claim.name) {
        Ok(route) => Some((entry, route)),
        Err(error) => {
            answers.push(Answer::Unknown(error));
            None
        }
    }
}

fn unknown(state: &State, claim: &Claim, why: String) -> Renewal {
    let action = format!("renewing lock {}", claim.name);
    Renewal::Unknown(Error::unavailable(state, action, why))
}

/// Combines the answers of all stores that the hold needs into one renewal, which ends at the latest when knowledge does.
fn together(state: &State, mut ends: BootInstant, claim: &Claim, answers: Vec<Answer>) -> Renewal {
    let (mut from, mut asked) = (None, false);
    for answer in answers {
        match answer {
            Answer::Lost(None) => return Renewal::Lost,
            Answer::Lost(Some(kind)) => return Renewal::Ended(kind),
            Answer::Unknown(error) => return Renewal::Unknown(error),
            Answer::Kept {
                counted_from,
                lease,
                asked: wanted,
            } => {
                let earlier = from.is_none_or(|from| counted_from < from);
                from = if earlier { Some(counted_from) } else { from };
                ends = ends.min(counted_from + lease);
                asked |= wanted;
            }
        }
    }
    let Some(from) = from else {
        return unknown(state, claim, "no store was asked".to_owned());
    };
    match ends > state.now() {
        true => Renewal::kept(from, ends.since(from), asked),
        false => {
            let why = "knowledge of the set's record is too old, or the answer came too late";
            unknown(state, claim, why.to_owned())
        }
    }
}

async fn renew_needed(state: &State, store: usize, jobs: &[Job]) -> Vec<(usize, Answer)> {
    let mut halves = Vec::new();
    for job in jobs {
        halves.push(Arc::clone(job.entry.half(store)).lock_owned().await);
    }
    let answers = renew_at(state, store, jobs, &mut halves, true).await;
    jobs.iter().map(|job| job.at).zip(answers).collect()
}

/// Renews in the background at the stores that no hold needs now. A hold with another call under way there is skipped.
fn follow(state: &Arc<State>, behind: Vec<Vec<Job>>) {
    for (store, jobs) in behind.into_iter().enumerate() {
        let mut locked = Vec::new();
        let mut halves = Vec::new();
        for job in jobs {
            if let Ok(half) = Arc::clone(job.entry.half(store)).try_lock_owned() {
                halves.push(half);
                locked.push(job);
            }
        }
        if locked.is_empty() {
            continue;
        }
        let state = Arc::clone(state);
        tokio::spawn(async move {
            let answers = renew_at(&state, store, &locked, &mut halves, false).await;
            for answer in answers {
                if let Answer::Unknown(error) = answer {
                    tracing::debug!(%error, "a hold is not complete");
                }
            }
        });
    }
}

/// Renews holds at one store, and places those that the store does not have, without waiting. The answers are in the order of
/// the jobs.
async fn renew_at(
    state: &State,
    store: usize,
    jobs: &[Job],
    halves: &mut [OwnedMutexGuard<Half>],
    needed: bool,
) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = jobs.iter().map(|_| None).collect();
    let (mut places, mut batch) = (Vec::new(), Vec::new());
    let now = state.now();
    for (at, (job, half)) in jobs.iter().zip(halves.iter()).enumerate() {
        // In a store that was not needed the grant may be over by now. The grant on which the hold depends is never replaced.
        let depends = needed && job.entry.counts() == Some(store);
        let goes_on = |grant: &&Grant| depends || is_valid(grant, now);
        if let Some(grant) = half.grant.as_ref().filter(goes_on) {
            batch.push(job.entry.held_at(store, &job.held, grant));
            places.push(at);
        }
    }
    let member = &state.members[store];
    match member.engine().await {
        Ok(engine) if !batch.is_empty() => {
            for (at, renewal) in places.iter().zip(engine.renew(&batch).await) {
                answers[*at] = Some(note(state, store, &mut halves[*at], renewal));
            }
        }
        Ok(_) => {}
        Err(error) => {
            let why = error.to_string();
            let unknown = |_| {
                let error = Error::unavailable(member, "renewing holds", why.as_str());
                Answer::Unknown(error)
            };
            return jobs.iter().map(unknown).collect();
        }
    }
    let rest = jobs.iter().zip(halves.iter_mut()).zip(&mut answers);
    let rest = rest.filter(|(_, answer)| answer.is_none());
    let placed = rest.map(async |((job, half), answer)| {
        *answer = Some(complete(state, store, half, job).await);
    });
    join_all(placed).await;
    let no_answer = || Answer::Unknown(Error::internal(state, "a renewal had no answer"));
    answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(no_answer))
        .collect()
}

fn note(state: &State, store: usize, half: &mut Half, renewal: Renewal) -> Answer {
    match renewal {
        Renewal::Kept {
            counted_from,
            lease,
            asked,
            ..
        } => {
            if let Some(grant) = &mut half.grant {
                (grant.counted_from, grant.lease) = (counted_from, lease);
            }
            Answer::Kept {
                counted_from,
                lease,
                asked,
            }
        }
        Renewal::Lost => {
            half.grant = None;
            Answer::Lost(None)
        }
        Renewal::Ended(kind) => {
            half.grant = None;
            Answer::Lost(Some(kind))
        }
        Renewal::Unknown(error) => Answer::Unknown(state.members[store].named(error)),
        _ => Answer::Unknown(Error::internal(state, "an unknown kind of renewal")),
    }
}

/// Places a hold that this store does not have, for example one from the phase before.
async fn complete(state: &State, store: usize, half: &mut Half, job: &Job) -> Answer {
    let Job { entry, held, .. } = job;
    let why = match half.over {
        true => "the claim was withdrawn",
        false => "somebody else holds it there",
    };
    if !half.over {
        let claim = at_store(&held.claim, false, Token(0)).wait(false);
        match place_half(state, store, half, &claim).await {
            Ok(Standing::Held(grant)) => {
                if entry.counts() == Some(store) && !grant.tokens.contains(held.token) {
                    entry.outlive();
                }
                return Answer::Kept {
                    counted_from: grant.counted_from,
                    lease: grant.lease,
                    asked: false,
                };
            }
            Ok(_) => {}
            Err(error) => return Answer::Unknown(error),
        }
    }
    let action = format!("completing lock {}", held.claim.name);
    let member = &state.members[store];
    Answer::Unknown(Error::unavailable(member, action, why))
}
