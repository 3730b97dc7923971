//! Renewing and releasing claims: `POST /v1/claims/{id}/renew` and `/release`, and `POST /v1/renewals`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::engine::{Claim, HeldClaim, Leave, Renewal, Withdrawn};
use fencelock_core::{BootInstant, ClaimId, Error, LockName, Token};
use fencelock_wire::{
    How, Kind, MOST_RENEWALS, Outcome, Release, Released, Renew, RenewMany, Renewed, RenewedMany,
    RenewedOne, WordHeld,
};
use futures_util::future::join_all;
use http::StatusCode;

use crate::asked::{Asked, check_once, released, since_sent, token};
use crate::audit::Deed;
use crate::bound::NotHere;
use crate::caller::Caller;
use crate::incoming::{Json, Key, Received, Speaks};
use crate::known::Visit;
use crate::many::Many;
use crate::refusal::Refusal;
use crate::renewer::Renewer;
use crate::replica::Replica;
use crate::reply::json;

/// The shortest time that a lane of the store gets for its answer, however short the leases are.
const LEAST_PATIENCE: Duration = Duration::from_millis(25);

/// Prolongs one hold.
pub(crate) async fn renew(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Speaks(id): Speaks,
    Json(body): Json<Renew>,
) -> Result<Response, Refusal> {
    let (token, shorten) = (token(body.token)?, body.shorten);
    let claim = Asked::from(body).claim(id, &replica, &caller)?;
    let name = claim.name.clone();
    let held = HeldClaim::new(claim, token).shorten(shorten);
    let bound = replica.bound.as_ref();
    if bound.is_some_and(|bound| bound.is_ending(id)) {
        return Err(lost(&name, id, token));
    }
    let mut visit = replica.known.enter(id);
    visit.take_turn().await;
    replica.check_fresh(received)?;
    caller.note_renewal();
    renewing(&replica, &held, received).map_err(|why| match why {
        NotHere::OtherMode => holds_otherwise(&held.claim),
        NotHere::Ended | NotHere::Other => lost(&name, id, token),
    })?;
    match replica.renewer.renew(held.clone(), visit).await {
        Renewal::Kept {
            counted_from,
            lease,
            asked,
            ..
        } => {
            replica.hear(&Ok(()));
            let Some(told) = told(&replica, &held, counted_from + lease, received) else {
                end(&replica, id, token);
                return Err(lost(&name, id, token));
            };
            kept(&replica, id, &name, token, counted_from + lease);
            let body = Renewed {
                state: WordHeld::Held,
                token,
                lease_ms_since_sent: told,
                full_ttl: lease >= held.claim.ttl,
                release_requested: asked || must_go(&replica),
            };
            Ok(json(StatusCode::OK, &body))
        }
        Renewal::Unknown(error) => {
            replica.metrics.renewed("unknown");
            let error = Err::<(), _>(error);
            replica.hear(&error);
            let refusal = error.err().as_ref().map(Refusal::of);
            Err(refusal
                .unwrap_or_else(|| lost(&name, id, token))
                .name(&name))
        }
        _ => Err(not_held(&replica, &held).await),
    }
}

/// The refusal of a renewal of a claim that does not hold by this grant. It ends here, unless it holds in another mode than the
/// renewal has: then nothing is lost.
async fn not_held(replica: &Replica, held: &HeldClaim) -> Refusal {
    let HeldClaim { claim, token, .. } = held;
    let view = replica.engine.inspect().look(&claim.name).await;
    let is_held = view.is_ok_and(|view| {
        view.holders.iter().any(|holder| {
            holder.claim == Some(claim.id)
                && holder.token == Some(*token)
                && holder.mode != claim.mode
        })
    });
    if is_held {
        return holds_otherwise(claim);
    }
    end(replica, claim.id, *token);
    lost(&claim.name, claim.id, *token)
}

fn holds_otherwise(claim: &Claim) -> Refusal {
    let detail = format!(
        "the claim {} holds lock {} in another mode, or with another permit_count; it was not renewed",
        claim.id, claim.name
    );
    Refusal::invalid(detail).name(&claim.name)
}

/// On a store that is bound to replicas: prolongs the claim here, or says why not.
fn renewing(replica: &Replica, held: &HeldClaim, received: BootInstant) -> Result<(), NotHere> {
    let until = received + held.claim.ttl + held.claim.lock_delay;
    let bound = replica.bound.as_ref();
    bound.map_or(Ok(()), |bound| bound.renewing(held, until))
}

/// Notes that a hold was renewed.
fn kept(replica: &Replica, id: ClaimId, name: &LockName, token: Token, until: BootInstant) {
    replica.metrics.renewed("kept");
    replica.events.holds(id, name, token, until);
}

/// Notes that a claim does not hold any more.
fn end(replica: &Replica, id: ClaimId, token: Token) {
    replica.metrics.renewed("lost");
    if replica.events.lost(id, token) {
        replica.metrics.lost("renewal");
    }
    if let Some(bound) = &replica.bound {
        bound.lost(id, token);
    }
}

/// How long a client may believe after a renewal that lasts until then at the store, in milliseconds since the client sent it. It
/// is at most the lease that this replica keeps, even if the session lasts longer. `None` if the claim has ended here meanwhile.
fn told(
    replica: &Replica,
    held: &HeldClaim,
    until: BootInstant,
    received: BootInstant,
) -> Option<u64> {
    let until = match &replica.bound {
        None => until,
        Some(bound) => {
            let until = until.min(received + held.claim.ttl);
            bound.tells(held.claim.id, held.token, until, held.shorten)?
        }
    };
    Some(since_sent(until, received))
}

/// Whether holders are to leave because this replica, on which their claims depend, is about to end.
fn must_go(replica: &Replica) -> bool {
    replica.bound.is_some() && replica.draining.is_cancelled()
}

fn lost(name: &LockName, id: ClaimId, token: Token) -> Refusal {
    let detail = format!(
        "the claim {id} does not hold lock {name} by token {token}: its lease is over, or it was taken away"
    );
    Refusal::new(Kind::Lost, detail).name(name)
}

/// `POST /v1/claims/{id}/release`: releases, leaves the queue, or undoes a request whose answer was lost.
pub(crate) async fn release(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Speaks(id): Speaks,
    Json(body): Json<Release>,
) -> Result<Response, Refusal> {
    let released = releasing(&replica, received, &caller, id, body).await?;
    Ok(json(StatusCode::OK, &released))
}

/// Withdraws a claim.
pub(crate) async fn releasing(
    replica: &Arc<Replica>,
    received: BootInstant,
    caller: &Caller,
    id: ClaimId,
    body: Release,
) -> Result<Released, Refusal> {
    let how = match body.how {
        How::Release => Leave::Release,
        How::Abandon => Leave::Abandon,
    };
    let claim = released(body, id, replica, caller)?;
    let name = claim.name.clone();
    let mut visit = replica.known.enter(id);
    visit.take_turn().await;
    replica.check_fresh(received)?;
    let bound = replica.bound.as_ref();
    if bound.is_some_and(|bound| bound.is_for_another(id, &name))
        || replica.known.is_for_another(&id, &name)
    {
        replica.metrics.released("not_owner");
        let released = Outcome::NotOwner;
        return Ok(Released { released });
    }
    let asked = Arc::clone(replica);
    let call = async move {
        let withdrawn = asked.engine.withdraw(&claim, how).await;
        asked.hear(&withdrawn);
        if let Some(bound) = &asked.bound {
            match withdrawn {
                Ok(_) => bound.ended(id),
                // In the background, until the store confirms it.
                Err(_) => bound.end(id),
            }
        }
        match withdrawn.is_ok() {
            true => visit.waits_no_more(),
            false => visit.may_wait(),
        }
        withdrawn
    };
    let withdrawn = replica.carry(call).await?;
    // The lock may have been handed over to a client that waits here.
    replica.let_grants_go_first().await;
    let withdrawn = withdrawn.map_err(|error| {
        replica.metrics.released("unknown");
        Refusal::of(&error).name(&name)
    })?;
    let ended = replica.events.ended(id);
    if let (Withdrawn::Released, Some(time)) = (&withdrawn, ended.and_then(|ended| ended.lasted)) {
        replica.metrics.held(&name, time);
    }
    let word = match withdrawn {
        Withdrawn::Released => "released",
        Withdrawn::LeftQueue => "left_queue",
        Withdrawn::Expired => "already_expired",
        _ => "not_owner",
    };
    replica.metrics.released(word);
    let released = match withdrawn {
        Withdrawn::Released => Outcome::Released,
        Withdrawn::LeftQueue => Outcome::LeftQueue,
        Withdrawn::Expired => Outcome::AlreadyExpired,
        _ => Outcome::NotOwner,
    };
    if released == Outcome::Released {
        caller.note_if_grants(|line| line.name(name.as_str()).claim(id), Deed::Release);
    }
    Ok(Released { released })
}

/// Prolongs many holds of one key, with one call of the engine for each lane.
pub(crate) async fn renew_many(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    Many { caller, key, body }: Many<RenewMany>,
) -> Result<Response, Refusal> {
    let asked = all_asked(&replica, &caller, &key, body)?;
    check_once(asked.iter().map(|(claim, _)| *claim))?;
    let (lanes, mut renewed) = by_lane(&replica, asked)?;
    if !lanes.is_empty() {
        caller.note_renewal();
    }
    let patience = (lanes.len() > 1).then(|| patience(&lanes));
    let (places, parts): (Vec<_>, Vec<_>) = lanes.into_values().unzip();
    let parts = parts
        .into_iter()
        .map(|part| renew_lane(&replica, part, received, patience));
    for (places, part) in places.into_iter().zip(join_all(parts).await) {
        renewed.extend(places.into_iter().zip(part?));
    }
    renewed.sort_unstable_by_key(|(at, _)| *at);
    let claims = renewed.into_iter().map(|(_, renewed)| renewed).collect();
    Ok(json(StatusCode::OK, &RenewedMany { claims }))
}

/// The holds of each lane, with their places in the answer; and the answers about those that are refused.
fn by_lane(
    replica: &Replica,
    asked: Vec<OneAsked>,
) -> Result<(Lanes, Vec<(usize, RenewedOne)>), Refusal> {
    let mut lanes = Lanes::new();
    let mut answered = Vec::with_capacity(asked.len());
    let mut first = None;
    for (at, (claim, asked)) in asked.into_iter().enumerate() {
        match asked {
            Ok(held) => {
                let lane = replica.engine.lane(&held.claim.name);
                let (places, part) = lanes.entry(lane).or_default();
                places.push(at);
                part.push(held);
            }
            Err(refusal) => {
                replica.metrics.renewed("unknown");
                let detail = refusal.problem().detail.clone();
                answered.push((at, RenewedOne::Unknown { claim, detail }));
                first.get_or_insert(refusal);
            }
        }
    }
    // A status would end the renewal of all other holds too, so it is only for a request of which nothing is left.
    match first.filter(|_| lanes.is_empty()) {
        Some(refusal) => Err(refusal),
        None => Ok((lanes, answered)),
    }
}

/// How long an answer about many holds waits for a lane of the store. The client waits twice as long for the answer.
fn patience(lanes: &Lanes) -> Duration {
    let held = lanes.values().flat_map(|(_, part)| part);
    let shortest = held.map(|held| held.claim.ttl).min();
    (shortest.unwrap_or_default() / 6).max(LEAST_PATIENCE)
}

/// Prolongs holds of one lane. After `patience` their outcome is unknown, and the call goes on.
async fn renew_lane(
    replica: &Arc<Replica>,
    held: Vec<HeldClaim>,
    received: BootInstant,
    patience: Option<Duration>,
) -> Result<Vec<RenewedOne>, Refusal> {
    let asked = async {
        let visits = enter_all(replica, &held).await;
        replica.check_fresh(received)?;
        let renewing = |(held, visit): (&HeldClaim, &Option<Visit>)| match visit {
            Some(_) => renewing(replica, held, received),
            None => Err(NotHere::Ended),
        };
        let checked: Vec<_> = held.iter().zip(&visits).map(renewing).collect();
        // Only claims that are still here are renewed.
        let here = held.iter().cloned().zip(visits).zip(&checked);
        let here = here.filter(|(_, checked)| checked.is_ok());
        let here = here.filter_map(|((held, visit), _)| Some((held, visit?)));
        let (here, visits) = here.unzip();
        let engine = Arc::clone(&replica.engine);
        let renewals = replica
            .carry(Renewer::renew_many(engine, here, visits))
            .await?;
        let mut renewals = renewals.into_iter();
        let renewals = checked.into_iter().map(|checked| {
            checked?;
            Ok(renewals
                .next()
                .unwrap_or_else(|| replica.renewer.no_answer()))
        });
        Ok::<_, Refusal>(renewals.collect::<Vec<_>>())
    };
    let renewals = match patience {
        None => asked.await?,
        Some(patience) => match tokio::time::timeout(patience, asked).await {
            Ok(renewals) => renewals?,
            Err(_) => {
                let silent = || {
                    let cause = format!("no answer within {patience:?}");
                    Error::unavailable(&replica.engine, "renewing holds", cause)
                };
                held.iter()
                    .map(|_| Ok(Renewal::Unknown(silent())))
                    .collect()
            }
        },
    };
    let answers = held.iter().zip(renewals);
    let answers = answers.map(|(held, renewal)| answer(replica, held, renewal, received));
    let answers: Vec<_> = answers.collect();
    if answers
        .iter()
        .any(|answer| matches!(answer, RenewedOne::Held { .. }))
    {
        replica.hear(&Ok(()));
    }
    Ok(answers)
}

/// Takes the turns of all claims. Returns the visits in the order of `held`. `None` for a claim that is ending: that may take its
/// turn for long, and must not hold up the others.
async fn enter_all(replica: &Replica, held: &[HeldClaim]) -> Vec<Option<Visit>> {
    let mut order: Vec<(ClaimId, usize)> = Vec::with_capacity(held.len());
    order.extend(
        held.iter()
            .enumerate()
            .map(|(at, held)| (held.claim.id, at)),
    );
    // In the order of ids, so that two requests never wait for each other (no deadlock).
    order.sort_unstable();
    let mut visits = Vec::with_capacity(held.len());
    for (id, at) in order {
        let bound = replica.bound.as_ref();
        if bound.is_some_and(|bound| bound.is_ending(id)) {
            visits.push((at, None));
            continue;
        }
        let mut visit = replica.known.enter(id);
        visit.take_turn().await;
        visits.push((at, Some(visit)));
    }
    visits.sort_unstable_by_key(|(at, _)| *at);
    visits.into_iter().map(|(_, visit)| visit).collect()
}

/// What one renewal asks for, or why it is refused: for example because its caller has lost the right to this one lock.
type OneAsked = (ClaimId, Result<HeldClaim, Refusal>);

/// The holds of each lane of the store, with their places in the answer.
type Lanes = BTreeMap<u32, (Vec<usize>, Vec<HeldClaim>)>;

fn all_asked(
    replica: &Replica,
    caller: &Caller,
    key: &Key,
    body: RenewMany,
) -> Result<Vec<OneAsked>, Refusal> {
    let count = body.claims.len();
    if count > MOST_RENEWALS {
        let detail =
            format!("{count} claims are too many for one request; {MOST_RENEWALS} are allowed");
        return Err(Refusal::invalid(detail));
    }
    let asked = body.claims.into_iter().map(|one| {
        key.check(&one.claim)?;
        let (id, token, shorten) = (one.claim, token(one.token)?, one.shorten);
        let claim = Asked::from(one).claim(id, replica, caller);
        let held = claim.map(|claim| HeldClaim::new(claim, token).shorten(shorten));
        Ok((id, held))
    });
    asked.collect()
}

fn answer(
    replica: &Replica,
    held: &HeldClaim,
    renewal: Result<Renewal, NotHere>,
    received: BootInstant,
) -> RenewedOne {
    let claim = held.claim.id;
    match renewal {
        Ok(Renewal::Kept {
            counted_from,
            lease,
            asked,
            ..
        }) => {
            let until = counted_from + lease;
            let Some(told) = told(replica, held, until, received) else {
                end(replica, claim, held.token);
                return RenewedOne::Lost { claim };
            };
            kept(replica, claim, &held.claim.name, held.token, until);
            RenewedOne::Held {
                claim,
                token: held.token,
                lease_ms_since_sent: told,
                full_ttl: lease >= held.claim.ttl,
                release_requested: asked || must_go(replica),
            }
        }
        Ok(Renewal::Unknown(error)) => {
            replica.metrics.renewed("unknown");
            let detail = error.to_string();
            replica.hear(&Err::<(), _>(error));
            RenewedOne::Unknown { claim, detail }
        }
        Err(NotHere::Other | NotHere::OtherMode) => {
            replica.metrics.renewed("lost");
            RenewedOne::Lost { claim }
        }
        Ok(_) | Err(NotHere::Ended) => {
            end(replica, claim, held.token);
            RenewedOne::Lost { claim }
        }
    }
}
