//! The renewer: renews all holds of a client in batches, and reports a loss to its holder in time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tracing::Instrument;

use super::hold::Hold;
use super::observer::note_outcome;
use super::schedule::{Renewing, end_of};
use super::state::State;
use super::withdraw;
use crate::engine::{Event, EventStream, LeaseKind, Renewal};
use crate::types::{Clock, LossReason, Result};

/// How many claims go into one call of [`Engine::renew`](crate::Engine::renew).
const BATCH: usize = 1000;

/// The renewer's task: ends when the client is dropped.
pub(crate) async fn run(client: Weak<State>, clock: Clock) {
    loop {
        let Some(state) = client.upgrade() else {
            return;
        };
        let (over, renew, next) = state.schedule.collect();
        for hold in over {
            end(&state, &hold);
        }
        let (renew, unhealthy): (Vec<_>, Vec<_>) = renew.into_iter().partition(|h| h.is_healthy());
        for hold in &unhealthy {
            tracing::warn!(name = %hold.claim.name, "not renewed: its holder is not healthy");
            state.schedule.put_off(hold);
        }
        for batch in batches(&state, renew) {
            let batch = state.schedule.renewing(batch);
            let renewing = Arc::clone(&state);
            let work = async move { renew_batch(&renewing, batch).await };
            state.background.run(work);
        }
        // The client may be dropped while this task sleeps, so keep only the schedule.
        let schedule = Arc::clone(&state.schedule);
        drop(state);
        match next {
            Some(next) => tokio::select! {
                () = clock.sleep_until(next) => {}
                () = schedule.moved_forward() => {}
            },
            None => schedule.moved_forward().await,
        }
    }
}

/// Splits the holds into calls: each has one lane, and not too many holds.
fn batches(state: &State, holds: Vec<Arc<Hold>>) -> Vec<Vec<Arc<Hold>>> {
    let mut lanes: BTreeMap<u32, Vec<Arc<Hold>>> = BTreeMap::new();
    for hold in holds {
        let lane = state.engine.lane(&hold.claim.name);
        lanes.entry(lane).or_default().push(hold);
    }
    let chunked = lanes.values().flat_map(|holds| holds.chunks(BATCH));
    chunked.map(<[_]>::to_vec).collect()
}

/// Listens to the events of the store.
pub(crate) async fn listen(client: Weak<State>, mut events: EventStream) {
    while let Some(event) = events.next().await {
        let Some(state) = client.upgrade() else {
            return;
        };
        match event {
            Ok(Event::Lost(id)) => {
                if let Some(hold) = state.schedule.find(id) {
                    state.lose(&hold, LossReason::TakenAway);
                }
            }
            Ok(Event::Ended(id, kind)) => {
                if let Some(hold) = state.schedule.find(id) {
                    state.lose(&hold, end_of(kind));
                }
            }
            Ok(Event::Asked(id)) => {
                if let Some(hold) = state.schedule.find(id) {
                    hold.ask();
                }
            }
            // Renewals still find losses.
            Err(error) => tracing::debug!(%error, "listening to the store failed"),
        }
    }
}

/// Ends a hold whose validity is over, and informs its guards. The task that notices it first calls this.
pub(crate) fn end(state: &Arc<State>, hold: &Arc<Hold>) {
    let (reason, ours) = hold.why_over();
    state.lose(hold, reason);
    let unnoticed = !hold.renews && state.promises().lease != LeaseKind::Lease;
    if (ours || unnoticed) && !hold.joined {
        // Its holder may be stuck, and the store may not notice the end by itself.
        let abandon = withdraw::abandon(Arc::clone(state), Arc::clone(hold));
        state.background.run(abandon);
    }
}

async fn renew_batch(state: &Arc<State>, batch: Renewing) {
    let holds = &batch.holds;
    let held: Vec<_> = holds.iter().map(|hold| hold.held_claim()).collect();
    let span = state.observed.renew_span();
    let mut renewals = state.engine.renew(&held).instrument(span.clone()).await;
    renewals.resize_with(held.len(), || {
        Renewal::Unknown(state.internal("a renewal had no answer"))
    });
    let (mut kept, mut lost, mut unknown) = (0, 0, 0);
    for ((hold, held), renewal) in holds.iter().zip(&held).zip(&renewals) {
        match renewal {
            Renewal::Kept { .. } => kept += 1,
            Renewal::Lost | Renewal::Ended(_) => lost += 1,
            Renewal::Unknown(_) => unknown += 1,
        }
        hold.seen.series().renewed(outcome(renewal));
        if let Some(reason) = state.schedule.note(hold, renewal, held) {
            state.lose(hold, reason);
        }
    }
    note_outcome(&span, worst(lost, unknown));
    tracing::debug!(kept, lost, unknown, "renewed");
    batch.noted();
    state
        .observed
        .tell(|observer| observer.renewed(kept, lost, unknown));
}

/// The outcome of a renewal, as a word.
fn outcome(renewal: &Renewal) -> &'static str {
    match renewal {
        Renewal::Kept { .. } => "kept",
        Renewal::Lost | Renewal::Ended(_) => "lost",
        Renewal::Unknown(_) => "unknown",
    }
}

/// The worst outcome of many, as a word.
fn worst(lost: usize, unknown: usize) -> &'static str {
    match (lost, unknown) {
        (0, 0) => "kept",
        (_, 0) => "lost",
        _ => "unknown",
    }
}

/// Renews one hold now, for `ttl` from now on, or as the renewals of the schedule do. Must not be dropped before its end.
pub(crate) async fn renew_now(
    state: &State,
    hold: &Arc<Hold>,
    ttl: Option<Duration>,
) -> Result<()> {
    // In turn with the other renewals, so that answers come in the order of the requests.
    let Some(renewing) = state.schedule.reserve(hold).await else {
        return Err(hold.lost_error());
    };
    let held = match ttl {
        Some(ttl) => hold.held_claim_for(ttl),
        None => hold.held_claim(),
    };
    if held.shorten {
        state.schedule.curtail(hold, held.claim.ttl);
    }
    let span = state.observed.renew_span();
    let renewal = state.engine.renew(std::slice::from_ref(&held));
    let renewal = renewal.instrument(span.clone()).await.pop();
    let renewal =
        renewal.unwrap_or_else(|| Renewal::Unknown(state.internal("a renewal had no answer")));
    note_outcome(&span, outcome(&renewal));
    hold.seen.series().renewed(outcome(&renewal));
    if let Some(reason) = state.schedule.note(hold, &renewal, &held) {
        state.lose(hold, reason);
    }
    renewing.noted();
    match renewal {
        Renewal::Kept { .. } if hold.is_valid() => Ok(()),
        Renewal::Kept { .. } | Renewal::Lost | Renewal::Ended(_) => Err(hold.lost_error()),
        Renewal::Unknown(error) => Err(error),
    }
}
