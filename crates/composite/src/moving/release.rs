//! How a hold ends: the engine withdraws the claim from each store that may know it, from the new store before the old one.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{Claim, Leave, Withdrawn};
use fencelock_core::{BootInstant, Result};

use crate::moving::acquire::withdraw_half;
use crate::moving::entry::{Entry, Half};
use crate::moving::state::State;

/// The pause between two attempts in the background.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) async fn withdraw(state: &Arc<State>, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    // The claim was never placed by this process, or it is over.
    let Some(entry) = state.entry(&claim.id) else {
        return Ok(Withdrawn::NotOwner);
    };
    let (mut left, mut kept) = (Vec::new(), Vec::new());
    for store in in_order(state, &entry) {
        let mut half = entry.half(store).lock().await;
        half.over = true;
        if half.asked {
            let until = kept_until(state, &half, claim);
            let withdrawn = withdraw_half(state, store, &mut half, claim, how).await;
            left.push((store, withdrawn));
            kept.push(until);
        }
    }
    let main = main_of(state, &entry, &left);
    let mut answer = Withdrawn::NotOwner;
    let mut others = Vec::new();
    for ((store, withdrawn), until) in left.into_iter().zip(kept) {
        match withdrawn {
            // After this error, the client withdraws again.
            Err(error) if Some(store) == main => return Err(error),
            Ok(withdrawn) if Some(store) == main => answer = withdrawn,
            Err(error) => others.push((store, error, until)),
            Ok(_) => {}
        }
    }
    for (store, error, until) in others {
        tracing::debug!(%error, "withdrawing a claim");
        insist(state, &entry, (store, until), claim, how);
    }
    state.remove(&claim.id);
    Ok(answer)
}

/// All stores in the order of withdrawal. If the name has two stores, they come last, the first store of its route at the end.
/// If it has one, that comes first: the others may be gone for good, and nobody waits for them.
fn in_order(state: &State, entry: &Entry) -> Vec<usize> {
    let route = state
        .known()
        .and_then(|now| state.route(&now.known, &entry.name));
    let mut order: Vec<_> = (0..entry.members()).collect();
    if let Ok(route) = route {
        order.retain(|store| !route.has(*store));
        match route.second {
            Some(_) => order.extend(route.stores().rev()),
            None => order.insert(0, route.first),
        }
    }
    order
}

/// The store whose answer the caller gets: one that a hold needs now, or else the one whose token the client has, or else any.
fn main_of(state: &State, entry: &Entry, left: &[(usize, Result<Withdrawn>)]) -> Option<usize> {
    let route = state
        .known()
        .and_then(|now| state.route(&now.known, &entry.name))
        .ok();
    let stores = || left.iter().map(|(store, _)| *store);
    let needed = |store: &usize| route.is_some_and(|route| route.needs(*store));
    let counts = entry.counts();
    stores()
        .find(needed)
        .or_else(|| stores().find(|store| counts == Some(*store)))
        .or_else(|| stores().next())
}

/// Ends a claim whose client does not withdraw it, for example after a final error. What a store does not answer is repeated in
/// the background.
pub(crate) async fn end(state: &Arc<State>, claim: &Claim) {
    let entry = state.entry(&claim.id);
    if let Err(error) = withdraw(state, claim, Leave::Release).await {
        tracing::debug!(%error, "withdrawing a claim");
        if let Some(entry) = entry {
            leave_all(state, &entry, claim).await;
        }
    }
}

/// Ends a claim that found the lock busy: its client need not withdraw it. If it is a hold that has lost the store that counts,
/// its other store still has it. The claim is then withdrawn from it in the background.
pub(crate) async fn leave_busy(state: &Arc<State>, claim: &Claim) {
    let Some(entry) = state.entry(&claim.id) else {
        return;
    };
    leave_all(state, &entry, claim).await;
}

/// Leaves all stores that may have something of a claim, in the background.
async fn leave_all(state: &Arc<State>, entry: &Arc<Entry>, claim: &Claim) {
    for store in 0..entry.members() {
        let mut half = entry.half(store).lock().await;
        if half.asked {
            // So a later call with this id cannot be undone by that withdrawal.
            half.over = true;
            let until = kept_until(state, &half, claim);
            insist(state, entry, (store, until), claim, Leave::Release);
        }
    }
    state.remove_if_done(&claim.id, entry).await;
}

/// Until when a store may keep its half of a claim if nobody withdraws it.
fn kept_until(state: &State, half: &Half, claim: &Claim) -> BootInstant {
    let lease = state.now() + claim.ttl;
    // A renewal may have prolonged it for longer than the ttl that the claim has now.
    let known = half
        .grant
        .as_ref()
        .map_or(lease, |grant| grant.counted_from + grant.lease);
    lease.max(known) + claim.lock_delay
}

/// Withdraws the claim in the background from a store that no hold needs, so that the release does not fail. What that store
/// still has of the claim delays others at most for its lease.
fn insist(
    state: &Arc<State>,
    entry: &Arc<Entry>,
    (store, until): (usize, BootInstant),
    claim: &Claim,
    how: Leave,
) {
    let (state, entry, claim) = (Arc::clone(state), Arc::clone(entry), claim.clone());
    tokio::spawn(async move {
        while !is_over(&state, until) {
            tokio::time::sleep(PAUSE).await;
            let mut half = entry.half(store).lock().await;
            if !half.asked
                || withdraw_half(&state, store, &mut half, &claim, how)
                    .await
                    .is_ok()
            {
                break;
            }
        }
        // Its lease has ended if the store never answered.
        entry.half(store).lock().await.asked = false;
        state.remove_if_done(&claim.id, &entry).await;
    });
}

fn is_over(state: &State, ends: BootInstant) -> bool {
    state.now() >= ends || state.common.joining.is_closed()
}
