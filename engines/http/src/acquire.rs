//! Taking a lock, and waiting for it: `PUT /v1/claims/{id}`.

use std::borrow::Cow;
use std::time::Duration;

use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::{Clock, Error, Result, Tokens};
use fencelock_wire::{Granted, Kind, LINES, ModeWord, Take, Waiting, millis, millis_up};
use http::{Method, StatusCode};

use crate::batch::What;
use crate::connection::{Ask, JSON};
use crate::error::{Action, RequestError, unreadable};
use crate::reply::Reply;
use crate::state::{Request, State};

/// The latest time at which a waiting claim is placed again. Its polls keep its place until then, so this is long.
const RECHECK: Duration = Duration::from_secs(3600);

/// The least time for an answer.
const SHORTEST_LIMIT: Duration = Duration::from_millis(500);

pub(crate) async fn place(state: &State, claim: &Claim) -> Result<Standing> {
    // Short enough that another replica can be asked before the claim loses its place.
    let limit = match state.entries.is_waiting(&claim.id) {
        true => (state.info.window() / 4).max(SHORTEST_LIMIT),
        false => state.config.response_timeout,
    };
    let limit = limit.min(state.config.response_timeout);
    if state.entries.has_ended(&claim.id) {
        return Ok(Standing::Ended);
    }
    let contention = state.contention.of(&claim.name);
    // If others want the lock, the claim will probably wait. Then one request returns its place, and waits.
    let waits = claim.wait && contention.is_contended() && state.info.tells_place();
    let wait = match waits {
        true => Wait::AfterPlace,
        false => Wait::Not,
    };
    let begun = Clock::Boot.now();
    let placed = put(state, claim, wait, limit, None).await;
    match &placed {
        Ok(Standing::Held(_)) => contention.lower(),
        Ok(_) => contention.raise(),
        Err(_) => {}
    }
    match placed {
        Err(failed) if goes_elsewhere(state, claim, &failed) => {
            state.entries.ends(&claim.id);
            Ok(Standing::Ended)
        }
        // The core must hear of a request that may still take effect: it withdraws the claim then.
        Ok(Standing::Busy) if state.entries.is_doubted_since(&claim.id, begun) => {
            let action = Action::of("taking", &claim.name).text();
            let why = "one replica did not answer, and another one says that the lock is held";
            Err(Error::unavailable(&state.config.store, action, why))
        }
        placed => Ok(placed?),
    }
}

/// Whether a claim that belongs to a replica is given up, because that replica cannot serve it and another one may. If
/// withdrawing fails, what the claim has there ends by itself within a claim window.
fn goes_elsewhere(state: &State, claim: &Claim, failed: &RequestError) -> bool {
    if state.homes.is_none() || !failed.error.is_away() {
        return false;
    }
    let Some((home, failures)) = state.entries.failed(&claim.id) else {
        return false;
    };
    // One failure may be an accident. A replica that refuses connections, or is about to end, will not continue as the same
    // replica.
    let is_gone = !failed.in_doubt && failed.kind != Some(Kind::Quota);
    let behind_a_balancer = home.address != state.replicas.address(home.index);
    (is_gone || failures > 1) && (behind_a_balancer || state.replicas.has_another(home.index))
}

/// Whether a request waits at the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Not,
    /// Its answer comes after the wait.
    Silently,
    /// A first answer gives the claim's place at once; the result is read later.
    AfterPlace,
}

/// Sends one request to take the lock. `at` is the replica that is tried first.
pub(crate) async fn put(
    state: &State,
    claim: &Claim,
    wait: Wait,
    limit: Duration,
    at: Option<usize>,
) -> Result<Standing, RequestError> {
    let key = state.key_of(claim)?;
    let path = format!("/v1/claims/{}", claim.id);
    let time = match wait {
        Wait::Not => Duration::ZERO,
        Wait::Silently | Wait::AfterPlace => state.info.poll(),
    };
    let body = state.json(&take(claim, time))?;
    let action = Action::of("taking", &claim.name);
    let home = state.home_of(&claim.id);
    let request = Request {
        ask: Ask {
            method: &Method::PUT,
            key: Some(&key.header),
            body: Some(&body),
            accept: match wait {
                Wait::AfterPlace => LINES,
                Wait::Not | Wait::Silently => JSON,
            },
            ..Ask::get(&path)
        },
        action,
        claim: Some(&claim.id),
        at,
        home: home.as_ref(),
        // A request that waits would delay the others.
        with_others: (wait == Wait::Not).then_some(What::Take),
        moves_on: wait != Wait::Silently && !state.entries.is_waiting(&claim.id),
        limit,
    };
    let reply = match &state.homes {
        Some(homes) if home.is_none() => state.ask_first(homes, &claim.id, request).await?,
        _ => state.ask(request).await?,
    };
    judge(state, claim, reply)
}

/// The standing that an answer to a request to take the lock gives.
pub(crate) fn judge(state: &State, claim: &Claim, reply: Reply) -> Result<Standing, RequestError> {
    let action = Action::of("taking", &claim.name);
    let said = match reply.status() {
        StatusCode::ACCEPTED => state.read(&reply, action).map(Said::Waiting),
        _ => state
            .read(&reply, action)
            .and_then(|granted| is_this(state, claim, action, granted))
            .map(Said::Granted),
    };
    match said {
        Ok(Said::Granted(granted)) => {
            state.entries.holds(&claim.id);
            let lease = Duration::from_millis(granted.lease_ms_since_sent);
            let lease = state.entries.sure_of(&claim.id, lease);
            let grant = Grant::new(Tokens::one(granted.token), reply.counted_from(), lease);
            Ok(Standing::Held(grant))
        }
        Ok(Said::Waiting(waiting)) => {
            state.entries.waits(&claim.id);
            let mut place = Place::new(Clock::Boot.now() + RECHECK);
            place.ahead = waiting.ahead;
            place.stalled = waiting.stalled.map(Cow::Owned);
            if reply.answer.rest.is_some()
                && let Some(before) = state.entries.keep_told(&claim.id, reply)
            {
                state.entries.doubt(&claim.id, before.sent);
            }
            Ok(Standing::Waiting(place))
        }
        Err(failed) if failed.kind == Some(Kind::Held) => {
            state.entries.waits_no_more(&claim.id);
            Ok(Standing::Busy)
        }
        Err(failed) if matches!(failed.kind, Some(Kind::Ended | Kind::OtherReplica)) => {
            state.entries.ends(&claim.id);
            Ok(Standing::Ended)
        }
        Err(failed) => {
            match failed.in_doubt {
                true => state.entries.doubt(&claim.id, reply.sent),
                false => state.entries.was_refused(&claim.id),
            }
            Err(failed)
        }
    }
}

enum Said {
    Granted(Granted),
    Waiting(Waiting),
}

fn take(claim: &Claim, wait: Duration) -> Take {
    let (mode, permit_count) = ModeWord::of(claim.mode);
    Take {
        name: claim.name.clone(),
        mode,
        permit_count,
        ttl_ms: Some(millis_up(claim.ttl)),
        lock_delay_ms: millis_up(claim.lock_delay),
        queue: claim.wait,
        wait_ms: millis(wait),
        owner: claim.owner.to_string(),
        label: claim.label.as_deref().map(str::to_owned),
    }
}

/// Refuses an answer about another claim.
fn is_this(
    state: &State,
    claim: &Claim,
    action: Action<'_>,
    granted: Granted,
) -> Result<Granted, RequestError> {
    match granted.claim == claim.id {
        true => Ok(granted),
        false => Err(unreadable(
            &state.config.store,
            "the service",
            action,
            "it is about another claim",
        )),
    }
}
