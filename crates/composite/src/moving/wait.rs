//! How a waiting claim learns that it is its turn: from the store at which it waits, or by a new phase.

use fencelock_core::Result;
use fencelock_core::engine::{Claim, Grant, Place};

use crate::moving::acquire::{at_store, believe};
use crate::moving::entry::Waits;
use crate::moving::state::State;

/// Returns when the claim should be placed again, or with its grant.
pub(crate) async fn wait(state: &State, claim: &Claim, place: &Place) -> Result<Option<Grant>> {
    let (Some(entry), Some(now)) = (state.entry(&claim.id), state.knowledge.now()) else {
        return Ok(None);
    };
    let route = state.route(&now.known, &claim.name)?;
    let changed = state.knowledge.changed(now.known.version);
    let store = match entry.waits() {
        Waits::ForNothing => return Ok(None),
        Waits::ForPhase(version) => {
            state.knowledge.changed(version).await;
            return Ok(None);
        }
        Waits::AtStore(store) if !route.has(store) => return Ok(None),
        Waits::AtStore(store) => store,
    };
    let member = &state.members[store];
    let engine = member.engine().await?;
    let here = at_store(claim, route.counts == Some(store), route.floor);
    let waited = tokio::select! {
        waited = engine.wait(&here, place) => waited,
        () = changed => return Ok(None),
    };
    let Some(grant) = waited.map_err(|error| member.named(error))? else {
        return Ok(None);
    };
    entry.half(store).lock().await.grant = Some(grant);
    match route.second {
        // Otherwise the claim is placed again, to take the other store or to give this one back.
        None if grant.tokens.first > route.floor => {
            Ok(believe(state, &entry, (&now, route), claim.mode).await)
        }
        _ => Ok(None),
    }
}
