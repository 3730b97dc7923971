//! Renewing holds: `POST /v1/renewals`, for many at once.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::engine::{HeldClaim, Renewal};
use fencelock_core::{Error, Result};
use fencelock_wire::{
    MOST_RENEWALS, ModeWord, RenewMany, RenewOne, RenewedMany, RenewedOne, millis_up,
};
use futures_util::future::join_all;

use crate::config::Key;
use crate::error::{Action, RequestError, unreadable};
use crate::home::Home;
use crate::state::{Request, State};

/// The longest body, in bytes. The service accepts one mebibyte; the rest is for what is not counted here.
const MOST_BYTES: usize = 900 << 10;

/// The shortest timeout of an answer, even if leases are shorter.
const SHORTEST_LIMIT: Duration = Duration::from_millis(50);

pub(crate) async fn renew(state: &State, held: &[HeldClaim]) -> Vec<Renewal> {
    let mut renewals: Vec<Option<Renewal>> = held.iter().map(|_| None).collect();
    let mut batches: Vec<Batch<'_>> = Vec::new();
    for (index, one) in held.iter().enumerate() {
        let home = state.home_of(&one.claim.id);
        match state.key_of(&one.claim) {
            // The claim was withdrawn.
            Ok(_) if state.homes.is_some() && home.is_none() => {
                renewals[index] = Some(Renewal::Lost);
            }
            Ok(key) => add(&mut batches, key, home, index, one),
            Err(error) => renewals[index] = Some(Renewal::Unknown(error)),
        }
    }
    let answers = batches.iter().map(|batch| ask(state, batch, held));
    let answers = join_all(answers).await;
    for (batch, answer) in batches.iter().zip(answers) {
        match answer {
            Ok(answered) => {
                for (&index, renewal) in batch.indices.iter().zip(answered) {
                    renewals[index] = Some(renewal);
                }
            }
            Err(failed) => {
                let text = failed.error.to_string();
                for &index in &batch.indices {
                    let action = Action::of("renewing", &held[index].claim.name).text();
                    let error = match &failed.error {
                        Error::Closed => Error::Closed,
                        error if error.is_away() => {
                            Error::unavailable(&state.config.store, action, text.clone())
                        }
                        _ => Error::refused(&state.config.store, action, text.clone()),
                    };
                    renewals[index] = Some(Renewal::Unknown(error));
                }
            }
        }
    }
    let missing = || {
        let why = "a renewal was not asked for";
        Renewal::Unknown(Error::internal(&state.config.store, why))
    };
    let renewals = renewals.into_iter();
    renewals
        .map(|renewal| renewal.unwrap_or_else(missing))
        .collect()
}

/// The holds of one request.
struct Batch<'a> {
    key: &'a Key,
    /// The replica to which they belong, if claims belong to replicas.
    home: Option<Arc<Home>>,
    /// Their indices in `held`.
    indices: Vec<usize>,
    /// About how many bytes the body has.
    bytes: usize,
}

fn add<'a>(
    batches: &mut Vec<Batch<'a>>,
    key: &'a Key,
    home: Option<Arc<Home>>,
    index: usize,
    held: &HeldClaim,
) {
    let claim = &held.claim;
    let label = claim.label.as_deref().map_or(0, str::len);
    // A character takes at most twice its bytes in JSON, since none of them is a control character.
    let bytes = 2 * (claim.name.as_str().len() + claim.owner.len() + label) + 300;
    let fits = |batch: &&mut Batch<'a>| {
        std::ptr::eq(batch.key, key)
            && is_same(batch.home.as_ref(), home.as_ref())
            && batch.indices.len() < MOST_RENEWALS
            && batch.bytes + bytes <= MOST_BYTES
    };
    match batches.iter_mut().rev().find(fits) {
        Some(batch) => {
            batch.indices.push(index);
            batch.bytes += bytes;
        }
        None => batches.push(Batch {
            key,
            home,
            indices: vec![index],
            bytes,
        }),
    }
}

fn is_same(one: Option<&Arc<Home>>, other: Option<&Arc<Home>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.id == other.id && one.address == other.address,
        (None, None) => true,
        _ => false,
    }
}

async fn ask(
    state: &State,
    batch: &Batch<'_>,
    held: &[HeldClaim],
) -> Result<Vec<Renewal>, RequestError> {
    let held: Vec<&HeldClaim> = batch.indices.iter().map(|index| &held[*index]).collect();
    // A service of an earlier version always sets the lease, and refuses the member that says so.
    let says_so = state.info.keeps_leases();
    for held in held.iter().filter(|held| held.shorten || !says_so) {
        state.entries.shortens(&held.claim.id, held.claim.ttl);
    }
    let claims = held.iter().map(|held| one(held, says_so)).collect();
    let body = state.json(&RenewMany { claims })?;
    let action = Action::plain("renewing");
    let shortest = held.iter().map(|held| held.claim.ttl).min();
    // Short enough that it can be repeated in time.
    let limit = shortest.unwrap_or_default() / 3;
    let limit = limit.clamp(
        SHORTEST_LIMIT.min(state.config.response_timeout),
        state.config.response_timeout,
    );
    let request = Request {
        ask: State::post("/v1/renewals", &batch.key.header, &body),
        action,
        claim: None,
        at: None,
        home: batch.home.as_ref(),
        with_others: None,
        // The claims of a home are at no other replica.
        moves_on: batch.home.is_none(),
        limit,
    };
    let reply = state.ask_again(request).await?;
    let answered: RenewedMany = state.read(&reply, action)?;
    let fits = answered.claims.len() == held.len()
        && held
            .iter()
            .zip(&answered.claims)
            .all(|(held, answer)| held.claim.id == *claim_of(answer));
    if !fits {
        let why = "it is not about the claims that were sent";
        return Err(unreadable(&state.config.store, "the service", action, why));
    }
    let answers = answered.claims.into_iter().zip(&held);
    let renewals = answers.map(|(answer, held)| match answer {
        RenewedOne::Held {
            lease_ms_since_sent,
            release_requested,
            ..
        } => {
            let lease = Duration::from_millis(lease_ms_since_sent);
            let lease = state.entries.sure_of(&held.claim.id, lease);
            Renewal::kept(reply.counted_from(), lease, release_requested)
        }
        RenewedOne::Lost { .. } => Renewal::Lost,
        RenewedOne::Unknown { detail, .. } => {
            let action = Action::of("renewing", &held.claim.name).text();
            Renewal::Unknown(Error::unavailable(&state.config.store, action, detail))
        }
    });
    Ok(renewals.collect())
}

fn claim_of(answer: &RenewedOne) -> &fencelock_core::ClaimId {
    match answer {
        RenewedOne::Held { claim, .. }
        | RenewedOne::Lost { claim }
        | RenewedOne::Unknown { claim, .. } => claim,
    }
}

fn one(held: &HeldClaim, says_so: bool) -> RenewOne {
    let claim = &held.claim;
    let (mode, permit_count) = ModeWord::of(claim.mode);
    RenewOne {
        claim: claim.id,
        name: claim.name.clone(),
        token: held.token,
        ttl_ms: Some(millis_up(claim.ttl)),
        shorten: held.shorten && says_so,
        lock_delay_ms: millis_up(claim.lock_delay),
        mode,
        permit_count,
        owner: claim.owner.to_string(),
        label: claim.label.as_deref().map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::engine::Claim;
    use fencelock_core::{ClaimIds, LockName, Token};

    use super::*;

    #[test]
    fn an_earlier_service_gets_no_member_that_it_refuses() {
        let name = LockName::new("a").unwrap();
        let claim = Claim::new(ClaimIds::new().unwrap().next(), "me", name);
        for (shorten, says_so, told) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let held = HeldClaim::new(claim.clone(), Token(7)).shorten(shorten);
            let text = serde_json::to_string(&one(&held, says_so)).unwrap();
            assert_eq!(text.contains("shorten"), told, "{text}");
        }
    }
}
