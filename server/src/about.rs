//! What the store behind the service promises, and whether the service is well.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::{Error, LockName};
use fencelock_wire::{
    BATCH, Finding, Findings, Kind, PLACE, SHORTEN, Store, WITHOUT, millis, millis_up,
};
use http::StatusCode;
use serde::Serialize;

use crate::caller::Caller;
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::reply::json;

/// Features of this version beyond the basics.
const FEATURES: [&str; 5] = ["simple", "renewals", BATCH, PLACE, SHORTEN];

/// One more feature, of replicas that get the store's events.
const EVENTS: &str = "events";

/// A store that has failed every call for this long is not ready.
const UNREADY_AFTER: Duration = Duration::from_secs(5);

/// `/readyz` calls the store itself if no other call was made for this long.
const IDLE: Duration = Duration::from_secs(2);

/// The lock that `/readyz` looks at to see whether the store answers. Nobody takes it.
const PROBE: &str = "fencelock/ready";

/// `GET /v1/store`: the promises of the store.
pub(crate) async fn store(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
) -> Result<Response, Refusal> {
    caller.must_be_somebody()?;
    let mut features = FEATURES.map(str::to_owned).to_vec();
    if replica.events.are_heard() {
        features.extend([EVENTS, WITHOUT].map(str::to_owned));
    }
    let promises = replica.promises();
    let body = Store {
        engine: promises.engine.to_owned(),
        store: replica.store.clone(),
        binding: replica.binding,
        claim_window_ms: millis(replica.window),
        poll_ms: millis(replica.poll()),
        order: promises.order.as_str().to_owned(),
        shared: promises.shared,
        permits: promises.permits,
        lock_delay: promises.lock_delay,
        lease: promises.lease.as_str().to_owned(),
        wake: promises.wake.as_str().to_owned(),
        durability: promises.durability.as_str().to_owned(),
        clock: promises.clock.to_owned(),
        min_ttl_ms: millis_up(replica.min_ttl()),
        max_ttl_ms: millis(replica.max_ttl()),
        limits: promises.limits.iter().map(Finding::from).collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        features,
        replica: replica.id.clone(),
        advertise: replica.config.advertise.clone(),
    };
    Ok(json(StatusCode::OK, &body))
}

/// `GET /v1/store/findings`: what is wrong with the store now.
pub(crate) async fn findings(
    State(replica): State<Arc<Replica>>,
    caller: Caller,
) -> Result<Response, Refusal> {
    caller.must_on_all(Right::Look)?;
    let asked = Arc::clone(&replica);
    let call = async move { asked.engine.inspect().diagnose().await };
    let found = replica.carry(call).await?;
    replica.hear(&found);
    let found = found.map_err(|error| Refusal::of(&error))?;
    let limits = replica.promises().limits.iter();
    let body = Findings {
        findings: limits.chain(&found).map(Finding::from).collect(),
    };
    Ok(json(StatusCode::OK, &body))
}

/// How the service is.
#[derive(Clone, Copy, Debug, Serialize)]
struct Health {
    /// Always `ok`.
    status: &'static str,
}

/// `GET /healthz`: whether the process serves requests.
pub(crate) async fn healthz(State(replica): State<Arc<Replica>>) -> Result<Response, Refusal> {
    match replica.pulse.is_well() {
        true => Ok(json(StatusCode::OK, &Health { status: "ok" })),
        false => {
            let detail = "the event loop of this replica is more than 2 s late";
            Err(Refusal::new(Kind::Unavailable, detail))
        }
    }
}

/// `GET /readyz`: whether the replica may be sent requests. It is ready if it is not draining and its store answers.
pub(crate) async fn readyz(State(replica): State<Arc<Replica>>) -> Result<Response, Refusal> {
    if replica.draining.is_cancelled() {
        return Err(Refusal::new(Kind::Draining, "this replica is about to end"));
    }
    if !replica.heard_within(IDLE) {
        probe(&replica).await;
    }
    match replica.failing() {
        Some((time, _)) if time >= UNREADY_AFTER => {
            let seconds = time.as_secs();
            // Everybody may ask this: no word of where the store is.
            let detail = format!("the store has failed every call for {seconds} s");
            Err(Refusal::new(Kind::Unavailable, detail))
        }
        _ => Ok(json(StatusCode::OK, &Health { status: "ok" })),
    }
}

async fn probe(replica: &Replica) {
    let Ok(name) = LockName::new(PROBE) else {
        return;
    };
    let look = replica.engine.inspect().look(&name);
    let answer = tokio::time::timeout(IDLE, look).await;
    let silent = || Error::unavailable(&replica.engine, "looking at a lock", "no answer");
    replica.hear(&answer.unwrap_or_else(|_| Err(silent())));
}
