//! Owners: entering again a lock that an owner already holds, in this process or in an outer one.

use std::sync::Arc;

use super::acquire::{Request, acquire};
use super::caller::Caller;
use super::hold::{Hold, Terms};
use super::joined::{attested, watch};
use super::share::Share;
use super::state::State;
use crate::engine::{Claim, Grant, HolderView};
use crate::types::{Error, LockName, Mode, Owner, Result, around};

/// Enters the owner's hold, or takes the lock on its behalf.
pub(crate) async fn enter(
    state: &Arc<State>,
    request: &mut Request,
    owner: &Owner,
    caller: &Arc<Caller>,
) -> Result<Share> {
    let claim = &request.claim;
    let slot = state.owners.slot(&owner.text, &claim.name);
    let mut held = if request.patience.waits {
        tokio::select! {
            held = slot.lock() => held,
            () = caller.gone(&state.closing) => return Err(Error::Closed),
        }
    } else {
        // If the slot is locked, another task of this owner is taking the lock just now.
        let name = claim.name.clone();
        slot.try_lock().map_err(|_| Error::Held { name })?
    };
    if let Some(hold) = held.upgrade()
        && hold.is_valid()
        && hold.add_guard_if_any()
    {
        let share = Share::of_counted(Arc::clone(state), hold);
        fits(claim, share.hold.mode())?;
        return Ok(share);
    }
    let joined = match owner.outer {
        true => join(state, request).await?,
        false => None,
    };
    let share = match joined {
        Some(share) => share,
        None => acquire(state, request, caller).await?,
    };
    *held = Arc::downgrade(&share.hold);
    Ok(share)
}

/// Joins the hold of an outer process, if the store confirms it.
async fn join(state: &Arc<State>, request: &Request) -> Result<Option<Share>> {
    let claim = &request.claim;
    let Some((holder, grant)) = find_outer(state, &claim.name, &claim.owner).await? else {
        return Ok(None);
    };
    fits(claim, holder.mode)?;
    let Some(id) = holder.claim else {
        return Ok(None);
    };
    if holder.token.is_none() {
        let why = format!(
            "the owner has held lock {} since before a move of its store, so only that process knows its token; release it there and take it again",
            claim.name
        );
        return Err(Error::unsupported(&state.engine, "entering this hold", why));
    }
    let joined = Claim {
        id,
        owner: holder.owner.as_str().into(),
        mode: holder.mode,
        lock_delay: holder.lock_delay,
        ..claim.clone()
    };
    let terms = Terms {
        renews: false,
        at_least: None,
        ..request.terms.clone()
    };
    let mut hold = Hold::new(joined, &grant, state.clock, terms);
    hold.joined = true;
    let hold = Arc::new(hold);
    let share = Share::new(Arc::clone(state), Arc::clone(&hold));
    let client = Arc::downgrade(state);
    state.background.spawn(watch(client, hold, state.clock));
    Ok(share.is_valid().then_some(share))
}

/// The hold of an outer owner, in another process, and what this process may believe of it.
async fn find_outer(
    state: &State,
    name: &LockName,
    owner: &str,
) -> Result<Option<(HolderView, Grant)>> {
    for owner in around(owner) {
        if let Some(found) = attested(state, name, owner).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Checks whether a claim may enter the hold of its owner.
fn fits(claim: &Claim, held: Mode) -> Result<()> {
    if claim.mode == held || held == Mode::Exclusive {
        return Ok(());
    }
    let why = format!(
        "its owner holds {} in {} mode already, and waiting for itself would never end; release that first",
        claim.name,
        held.as_str()
    );
    Err(Error::invalid("mode", claim.mode.as_str(), why))
}
