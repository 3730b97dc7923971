//! Locks as others see them, and what they can do about them: `lock`, `locks`, `attest`, `check`, `evict`.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use fencelock_core::engine::{Evict as EngineEvict, HolderView, LockView};
use fencelock_core::{BootInstant, LeaseKind, LockName, Sequencer, Token};
use fencelock_wire::{
    Attest, Attested, Check, Checked, Evict, EvictHow, Evicted, Holder, Lock, Locks, millis,
};
use http::StatusCode;

use crate::asked::{any_token, since_sent, token};
use crate::audit::{Deed, Line};
use crate::caller::Caller;
use crate::incoming::{Json, Query, Received};
use crate::listing::{MOST, list};
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::reply::json;

/// The longest wait for a change of a lock.
const LONGEST_WATCH: Duration = Duration::from_secs(60);

/// How many locks a page has by default.
const PAGE: u64 = 100;

/// `GET /v1/lock`: one lock as it is now, or when its highest token differs from the one that the client has seen.
pub(crate) async fn lock(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let query = Query::read(query.as_deref(), &["name", "seen", "wait_ms"])?;
    let Some(name) = query.get("name") else {
        let detail = "the parameter name is missing; give the name of the lock";
        return Err(Refusal::invalid(detail));
    };
    let name = LockName::new(name).map_err(|error| Refusal::of(&error))?;
    caller.must(Right::Look, &name)?;
    let seen = match query.get("seen") {
        None => None,
        Some("none") => Some(None),
        Some(_) => {
            let number = query.number("seen")?.unwrap_or_default();
            Some(Some(token(Token(number))?))
        }
    };
    let wait = Duration::from_millis(query.number("wait_ms")?.unwrap_or_default());
    if wait > LONGEST_WATCH {
        let detail = format!("wait_ms is at most {}", LONGEST_WATCH.as_millis());
        return Err(Refusal::invalid(detail).name(&name));
    }
    let view = match seen {
        None if !wait.is_zero() => {
            let detail = "wait_ms needs seen: the token of the lock as it was seen last, or none";
            return Err(Refusal::invalid(detail).name(&name));
        }
        Some(seen) if !wait.is_zero() => watch(&replica, &caller, &name, seen, wait).await,
        _ => look(&replica, &name).await,
    };
    let view = view.map_err(|refusal| refusal.name(&name))?;
    Ok(json(StatusCode::OK, &Lock::from(view)))
}

pub(crate) async fn look(replica: &Arc<Replica>, name: &LockName) -> Result<LockView, Refusal> {
    let view = replica.engine.inspect().look(name).await;
    replica.hear(&view);
    view.map_err(|error| Refusal::of(&error))
}

async fn watch(
    replica: &Arc<Replica>,
    caller: &Caller,
    name: &LockName,
    seen: Option<Token>,
    wait: Duration,
) -> Result<LockView, Refusal> {
    let _poll = replica.open_poll(false)?;
    let mut reloads = replica.reloads();
    let until = tokio::time::Instant::now() + wait;
    let mut watch = replica.engine.inspect().watch(name, seen);
    let watched = loop {
        tokio::select! {
            biased;
            _ = reloads.changed() => caller.again()?.must(Right::Look, name)?,
            view = &mut watch => break Some(view),
            () = replica.draining.cancelled() => break None,
            () = tokio::time::sleep_until(until) => break None,
        }
    };
    match watched {
        Some(view) => view.map_err(|error| Refusal::of(&error)),
        None => look(replica, name).await,
    }
}

/// `GET /v1/locks`: a page of the locks that are held.
pub(crate) async fn locks(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    caller.must_be_somebody()?;
    let query = Query::read(query.as_deref(), &["prefix", "cursor", "limit"])?;
    let prefix = query.get("prefix").unwrap_or_default();
    let limit = query.number("limit")?.unwrap_or(PAGE);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if !(1..=MOST).contains(&limit) {
        return Err(Refusal::invalid(format!("limit is 1 to {MOST}")));
    }
    let page = list(&replica, &caller, prefix, query.get("cursor"), limit).await?;
    let body = Locks {
        locks: page.items.into_iter().map(Lock::from).collect(),
        next: page.next.map(|next| next.0),
    };
    Ok(json(StatusCode::OK, &body))
}

/// `GET /v1/attest`: what a process that joins the hold of an owner may believe.
pub(crate) async fn attest(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Json(body): Json<Attest>,
) -> Result<Response, Refusal> {
    let Attest { name, owner } = body;
    caller.must(Right::Look, &name)?;
    let inspect = replica.engine.inspect();
    let mut attested = inspect.attest(&name, &owner).await;
    if matches!(attested, Ok(None)) {
        // A client gives the names of its owners without the name of its principal.
        let own = caller.owner(&owner);
        if own != owner {
            attested = inspect.attest(&name, &own).await;
        }
    }
    replica.hear(&attested);
    let attested = attested.map_err(|error| Refusal::of(&error).name(&name))?;
    let body = match attested {
        Some((holder, grant)) => {
            let lease = since_sent(grant.counted_from + grant.lease, received);
            Attested {
                lease_ms_since_sent: kept_here(&replica, (&name, &holder), received).min(lease),
                holder: Some(Holder::from(holder)),
            }
        }
        None => Attested {
            holder: None,
            lease_ms_since_sent: 0,
        },
    };
    Ok(json(StatusCode::OK, &body))
}

/// How long this replica certainly keeps a hold: as long as it has told the holder. On a store with sessions that belong to a
/// replica, the store's remaining time is not that of the hold: other clients keep the session alive, while the replica ends
/// what was not renewed.
fn kept_here(
    replica: &Replica,
    (name, holder): (&LockName, &HolderView),
    received: BootInstant,
) -> u64 {
    let Some(bound) = &replica.bound else {
        return u64::MAX;
    };
    let until = holder.claim.and_then(|id| bound.believed_until(id, name));
    until.map_or(0, |until| millis(until.since(received)))
}

/// Whether the grant of a sequencer is still held.
pub(crate) async fn check(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
    Json(body): Json<Check>,
) -> Result<Response, Refusal> {
    let sequencer: Sequencer = body
        .sequencer
        .parse()
        .map_err(|error: fencelock_core::Error| Refusal::of(&error))?;
    caller.must(Right::Look, &sequencer.name)?;
    let view = look(&replica, &sequencer.name).await;
    let view = view.map_err(|refusal| refusal.name(&sequencer.name))?;
    // The remaining time of a session is not that of a lease.
    let leases = replica.promises().lease == LeaseKind::Lease;
    let held = view.holders.iter().any(|holder| {
        holder.claim == Some(sequencer.claim)
            && holder.token == Some(sequencer.token)
            && holder.mode.letter() == sequencer.mode.letter()
            && (!leases || holder.ttl_left.is_none_or(|left| left > holder.lock_delay))
    });
    Ok(json(StatusCode::OK, &Checked { held }))
}

/// `POST /v1/evict`: evicts the holder with a token, or asks it to release.
pub(crate) async fn evict(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Json(body): Json<Evict>,
) -> Result<Response, Refusal> {
    let (name, token) = (body.name, any_token(body.token)?);
    let done = take_away(&replica, &caller, received, &name, token, body.how).await?;
    Ok(json(StatusCode::OK, &Evicted { done }))
}

/// Evicts a holder, or asks it to release, if the caller has the right. Returns whether there was such a holder.
pub(crate) async fn take_away(
    replica: &Arc<Replica>,
    caller: &Caller,
    received: BootInstant,
    name: &LockName,
    token: Token,
    asked_how: EvictHow,
) -> Result<bool, Refusal> {
    caller.must(Right::Evict, name)?;
    let (how, deed) = match asked_how {
        EvictHow::Release => (EngineEvict::Release, Deed::Evict),
        EvictHow::Ask => (EngineEvict::Ask, Deed::RequestRelease),
    };
    let line = |line: Line| line.name(name.as_str()).token(token);
    caller.confirm(line, deed).await?;
    replica.check_fresh(received)?;
    let (asked, lock) = (Arc::clone(replica), name.clone());
    let call = async move { asked.engine.inspect().evict(&lock, token, how).await };
    let evicted = replica.carry(call).await?;
    replica.hear(&evicted);
    let word = match &evicted {
        Ok(true) => "done",
        Ok(false) => "no_such_holder",
        Err(_) => "unknown",
    };
    let verb = match asked_how {
        EvictHow::Release => "release",
        EvictHow::Ask => "ask",
    };
    replica.metrics.evicted(verb, word);
    let outcome = match &evicted {
        Ok(true) => "done".to_owned(),
        Ok(false) => "no such holder".to_owned(),
        Err(error) => error.to_string(),
    };
    caller.note(
        |line| line.name(name.as_str()).token(token).outcome(outcome),
        deed,
    );
    evicted.map_err(|error| Refusal::of(&error).name(name))
}
