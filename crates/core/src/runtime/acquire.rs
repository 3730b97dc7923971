//! From a request to a hold: it waits for its turn in this process, then at the store.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::caller::Caller;
use super::hold::{Hold, Terms};
use super::place::{Patience, place};
use super::queue::{Entered, Front, Turn};
use super::renewer::renew_now;
use super::share::Share;
use super::state::State;
use crate::engine::{Claim, Grant};
use crate::types::{BootInstant, Error, LossReason, Mode, Result};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) claim: Claim,
    pub(crate) terms: Terms,
    pub(crate) patience: Patience,
}

/// Takes the lock of a request.
pub(crate) async fn acquire(
    state: &Arc<State>,
    request: &mut Request,
    caller: &Arc<Caller>,
) -> Result<Share> {
    let begun = state.observed.times_waits().then(|| state.clock.now());
    let (claim, patience) = (&request.claim, request.patience);
    if claim.mode != Mode::Exclusive || !claim.wait {
        if !patience.waits && state.queues.holds(&claim.name) {
            let name = claim.name.clone();
            return Err(Error::Held { name });
        }
        return at_store(state, request, begun, None, caller).await;
    }
    loop {
        let claim = &request.claim;
        let plain = request.terms.are_plain() && !claim.record;
        let front = match state.queues.enter(claim, plain, caller) {
            Entered::Front(front) => front,
            Entered::Waiting(turn) => match wait_here(state, turn, caller).await? {
                Came::Front(front) => front,
                Came::Share(share) if share.is_valid() => {
                    state.report_grant(&share.hold, share.token, begun, true);
                    return Ok(share);
                }
                // This task did not run until the hold that was handed to it was over. It goes to the end of the queue.
                Came::Share(share) => {
                    drop(share);
                    continue;
                }
            },
        };
        return at_store(state, request, begun, Some(front), caller).await;
    }
}

/// The result of a turn in this process's queue.
enum Came {
    Front(Front),
    Share(Share),
}

/// Waits for a turn in this process's queue.
async fn wait_here(
    state: &Arc<State>,
    turn: oneshot::Receiver<Turn>,
    caller: &Caller,
) -> Result<Came> {
    let mut waiting = Waiting { state, turn };
    let turn = tokio::select! {
        biased;
        turn = &mut waiting.turn => turn,
        () = caller.gone(&state.closing) => return Err(Error::Closed),
    };
    match turn {
        Ok(Turn::Front(front)) => Ok(Came::Front(front)),
        Ok(Turn::HandedOn(hold)) => {
            let share = Share::of_counted(Arc::clone(state), hold);
            Ok(Came::Share(share))
        }
        Err(_) => Err(state.internal("the queue in this process was dropped")),
    }
}

/// A place in this process's queue. A turn that comes while it is dropped goes to the next task.
struct Waiting<'a> {
    state: &'a Arc<State>,
    turn: oneshot::Receiver<Turn>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.turn.close();
        if let Ok(Turn::HandedOn(hold)) = self.turn.try_recv() {
            drop(Share::of_counted(Arc::clone(self.state), hold));
        }
    }
}

/// Takes the lock at the store, as the front of this process's queue, or outside of it.
async fn at_store(
    state: &Arc<State>,
    request: &mut Request,
    begun: Option<BootInstant>,
    front: Option<Front>,
    caller: &Arc<Caller>,
) -> Result<Share> {
    let Request {
        claim,
        terms,
        patience,
    } = request;
    // Counted as work until the hold is in the schedule, where a close finds it.
    let _working = state.background.working();
    let contended = front.as_ref().is_some_and(|front| front.contended);
    if contended && state.promises().ranges && !claim.record {
        claim.reserve = state.settings.batch;
    }
    let ttl = claim.ttl;
    // The store must have this lease from the beginning, because a killed holder cannot prolong it later.
    claim.ttl = ttl.max(terms.at_least.unwrap_or_default());
    let grant = place(state, claim, *patience, caller).await?;
    // A grant that the store pushed has a short lease, which later renewals prolong, if there are any.
    let whole = terms.at_least.is_some() || !terms.renews;
    let short = whole && grant.lease < claim.ttl;
    claim.ttl = ttl;
    let share = hold(state, claim.clone(), terms.clone(), &grant, begun, front);
    // Boxed, so that the future of the common case stays small.
    if short && let Err(error) = Box::pin(renew_now(state, &share.hold, None)).await {
        tracing::debug!(name = %share.hold.claim.name, %error, "the lease is shorter than was asked");
    }
    if state.is_closed() {
        drop(share);
        return Err(Error::Closed);
    }
    Ok(share)
}

/// Makes a hold of a grant, puts it into the schedule of renewals, and into the queue as its holder.
fn hold(
    state: &Arc<State>,
    claim: Claim,
    terms: Terms,
    grant: &Grant,
    begun: Option<BootInstant>,
    front: Option<Front>,
) -> Share {
    let hold = Arc::new(Hold::new(claim, grant, state.clock, terms));
    let share = Share::new(Arc::clone(state), Arc::clone(&hold));
    let early = state.schedule.add(&hold, grant.counted_from, grant.lease);
    if early && !hold.renews {
        // No renewal will tell whether the event was about an earlier grant of this claim.
        state.lose(&hold, LossReason::TakenAway);
    }
    if let Some(front) = front {
        front.granted(&hold);
    }
    state.report_grant(&hold, share.token, begun, false);
    share
}
