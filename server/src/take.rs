//! `PUT /v1/claims/{id}`: take, wait in the queue, or poll.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::support::Backoff;
use fencelock_core::{BootInstant, ClaimId, Error, Sequencer, Token};
use fencelock_wire::{
    BatchBody, Granted, Kind, ModeWord, Take, Waiting, WordHeld, WordWaiting, millis,
};
use futures_util::{FutureExt, TryFutureExt};
use http::header::CONNECTION;
use http::{HeaderValue, StatusCode};
use tokio::sync::oneshot;

use crate::asked::{Asked, since_sent};
use crate::audit::{Deed, Line};
use crate::caller::Caller;
use crate::incoming::{Json, Received, Speaks, WantsLines};
use crate::known::Visit;
use crate::lines::{in_lines, line, to_line};
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::{Poll, Replica};
use crate::reply::json;

/// How much time a pushed grant must have left to be answered as it is, because the answer needs time to travel.
const TO_SPARE: Duration = Duration::from_millis(50);

/// The shortest and the longest pause after an error while waiting.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

pub(crate) async fn take(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Speaks(id): Speaks,
    WantsLines(wants_lines): WantsLines,
    Json(body): Json<Take>,
) -> Result<Response, Refusal> {
    if wants_lines && body.queue && body.wait_ms > 0 {
        return take_in_lines(replica, received, caller, id, body).await;
    }
    let taken = taking(&replica, received, &caller, id, body, None).await?;
    Ok(answer(&replica, taken))
}

fn answer(replica: &Replica, taken: Taken) -> Response {
    match taken {
        Taken::Granted(body) => json(StatusCode::OK, &body),
        Taken::Waiting(body) => {
            let mut response = json(StatusCode::ACCEPTED, &body);
            if replica.draining.is_cancelled() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(CONNECTION, close);
            }
            response
        }
    }
}

/// If the claim waits, a first line gives its place at once, and a second one the result.
async fn take_in_lines(
    replica: Arc<Replica>,
    received: BootInstant,
    caller: Caller,
    id: ClaimId,
    body: Take,
) -> Result<Response, Refusal> {
    let (tell, mut told) = oneshot::channel();
    let asked = Arc::clone(&replica);
    let taken = async move { taking(&asked, received, &caller, id, body, Some(tell)).await };
    let mut taken = taken.boxed();
    let place = tokio::select! {
        biased;
        taken = &mut taken => return Ok(answer(&replica, taken?)),
        Ok(place) = &mut told => place,
    };
    let rest = async move { line(&replica, id, taken.map_ok(Taken::in_line)).await };
    let mut response = in_lines(Some(to_line(&place).into()), [rest.boxed()]);
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// The result of a request to take a lock.
pub(crate) enum Taken {
    Granted(Granted),
    Waiting(Waiting),
}

impl Taken {
    /// The status and body for a line of an answer.
    pub(crate) fn in_line(self) -> (StatusCode, BatchBody) {
        match self {
            Self::Granted(granted) => (StatusCode::OK, BatchBody::Granted(granted)),
            Self::Waiting(waiting) => (StatusCode::ACCEPTED, BatchBody::Waiting(waiting)),
        }
    }
}

/// Takes, joins the queue, or goes on waiting. If the client wants that, it gets the claim's place before the claim waits.
pub(crate) async fn taking(
    replica: &Arc<Replica>,
    received: BootInstant,
    caller: &Caller,
    id: ClaimId,
    body: Take,
    tell: Option<oneshot::Sender<Waiting>>,
) -> Result<Taken, Refusal> {
    let wait = Duration::from_millis(body.wait_ms).min(replica.poll());
    let queue = body.queue;
    let claim = Asked::from(body).claim(id, replica, caller)?;
    let name = claim.name.clone();
    if replica.known.is_for_another(&id, &name) {
        // The place of one lock's queue must not be used in that of another one.
        return Err(ended(id).name(&name));
    }
    let mut visit = replica.known.enter(id);
    if queue {
        replica.let_grants_go_first().await;
    }
    visit.take_turn().await;
    // The requests before this one have had their effect.
    let admitted = match admit(replica, caller, &visit, &claim, queue) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            if !visit.is_placed() {
                visit.waits_no_more();
            }
            return Err(refusal);
        }
    };
    let ttl = claim.ttl;
    let asking = Asking {
        since: visit.since(),
        claim: claim.ttl(replica.first_ttl(ttl)).wait(admitted.queue),
        ttl,
        received,
        until: received + wait,
        replica: Arc::clone(replica),
        tell,
        admitted,
    };
    #[cfg(fencelock_planted)]
    visit.wants(&asking.claim);
    let taken = asking.run(visit, caller).await;
    taken.map_err(|refusal| refusal.name(&name))
}

/// How a request was admitted.
struct Admitted {
    /// Whether the claim may join the queue.
    queue: bool,
    /// Why it may not, although the client wants it to.
    no_queue: Option<Refusal>,
    /// Whether it was placed before, and the outcome is open: it stands in the queue, or a request had no answer.
    placed: bool,
    /// The token that it holds with, as far as this replica knows. Such a request was not counted.
    repeats: Option<Token>,
    _poll: Option<Poll>,
}

/// Counts a request, unless it repeats one whose answer may have been lost. That one asks for nothing new, so it is never
/// refused.
fn admit(
    replica: &Arc<Replica>,
    caller: &Caller,
    visit: &Visit,
    claim: &Claim,
    queue: bool,
) -> Result<Admitted, Refusal> {
    let name = &claim.name;
    if replica.known.is_for_another(&claim.id, name) {
        return Err(ended(claim.id));
    }
    let placed = visit.is_placed();
    let repeats = match placed {
        true => None,
        false => replica.events.held_with(&claim.id, name),
    };
    let repeats = repeats.filter(|_| caller.may_repeat());
    let is_new = !placed && repeats.is_none();
    if replica.draining.is_cancelled() && is_new {
        return Err(Refusal::draining(name));
    }
    let waiter = match queue && !visit.is_counted() {
        true => Some(caller.count_waiter(name)),
        false => None,
    };
    let (waiter, no_queue) = match (waiter.transpose(), repeats) {
        (Ok(waiter), _) => (waiter, None),
        // If it holds, it needs no place in the queue.
        (Err(refusal), Some(_)) => (None, Some(refusal)),
        (Err(refusal), None) => return Err(refusal),
    };
    let queue = queue && no_queue.is_none();
    if is_new {
        caller.count_take(name)?;
    }
    let poll = match queue {
        true => Some(replica.open_poll(!is_new)?),
        false => None,
    };
    visit.placing(name, waiter);
    Ok(Admitted {
        queue,
        no_queue,
        placed,
        repeats,
        _poll: poll,
    })
}

/// One request to take a lock.
struct Asking {
    replica: Arc<Replica>,
    /// The claim with the lease of a first grant.
    claim: Claim,
    /// The whole lease.
    ttl: Duration,
    received: BootInstant,
    until: BootInstant,
    /// When the first request of the claim came.
    since: BootInstant,
    /// Gets the claim's place before it waits, if the client wants that.
    tell: Option<oneshot::Sender<Waiting>>,
    admitted: Admitted,
}

/// What ended a wait.
enum Woken {
    Granted(Grant),
    /// The claim should be placed again.
    Again,
    /// The same, after a pause.
    AgainIn(Duration),
    /// The request must be answered now.
    Over,
}

impl Asking {
    /// The visit has the turn.
    async fn run(mut self, mut visit: Visit, caller: &Caller) -> Result<Taken, Refusal> {
        let mut errors = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
        if let Some(bound) = &self.replica.bound {
            let placing = bound.placing(&self.claim, self.received + self.replica.window);
            placing.map_err(|_| self.ended())?;
        }
        let mut waited = self.admitted.placed;
        let name = self.claim.name.clone();
        let mut refused = pin!(caller.loses(Right::Take, &name));
        loop {
            self.replica.check_fresh(self.received)?;
            let (standing, back) = place(&self.replica, self.claim.clone(), visit).await?;
            visit = back;
            self.charge_if_new(&standing, caller);
            let place = match standing {
                Ok(Standing::Held(grant)) => return self.granted(&grant, caller, waited),
                Ok(Standing::Waiting(place)) => place,
                // A set of stores moved meanwhile, or the store is another lock service, which has ended the claim.
                Ok(Standing::Ended) => return Err(self.ended()),
                Ok(_) => return Err(self.admitted.no_queue.take().unwrap_or_else(|| self.held())),
                Err(error) => return Err(Refusal::of(&error)),
            };
            waited = true;
            if let Some(tell) = self.tell.take() {
                // Sending fails if the client is gone.
                let _ = tell.send(self.waiting(&place));
            }
            let replica = &self.replica;
            let _waiting = replica.waiting.one_more();
            let woken = tokio::select! {
                biased;
                () = visit.superseded() => Woken::Over,
                refusal = &mut refused => return Err(refusal),
                () = replica.draining.cancelled() => Woken::Over,
                () = replica.clock.sleep_until(self.until) => Woken::Over,
                woken = replica.engine.wait(&self.claim, &place) => self.judge(woken, &mut errors),
                () = replica.clock.sleep_until(place.recheck) => Woken::Again,
            };
            let woken = match woken {
                Woken::AgainIn(pause) => tokio::select! {
                    biased;
                    () = visit.superseded() => Woken::Over,
                    refusal = &mut refused => return Err(refusal),
                    () = replica.draining.cancelled() => Woken::Over,
                    () = replica.clock.sleep_until(self.until) => Woken::Over,
                    () = tokio::time::sleep(pause) => Woken::Again,
                },
                woken => woken,
            };
            let drains = replica.draining.is_cancelled() && !visit.is_superseded();
            match (woken, &replica.bound) {
                (Woken::Granted(grant), _) => {
                    visit.waits_no_more();
                    #[cfg(fencelock_planted)]
                    crate::planted::confirm(&replica.engine, &self.claim, self.ttl, &grant).await;
                    return self.granted(&grant, caller, true);
                }
                (Woken::Again, _) if replica.clock.now() < self.until && !visit.is_superseded() => {
                }
                // A claim that waits at this replica alone could get its turn when nobody may hold here any more. So it ends, and
                // its client takes a place at another replica.
                (Woken::Over, Some(bound)) if drains => {
                    bound.end(self.claim.id);
                    return Err(self.ended());
                }
                (Woken::Again | Woken::AgainIn(_) | Woken::Over, _) => {
                    return Ok(Taken::Waiting(self.waiting(&place)));
                }
            }
        }
    }

    /// Counts a request that was taken for the repetition of one, and got something new.
    fn charge_if_new(&mut self, standing: &Result<Standing, Error>, caller: &Caller) {
        let Some(token) = self.admitted.repeats.take() else {
            return;
        };
        let is_same = matches!(standing, Ok(Standing::Held(grant)) if grant.tokens.first == token);
        if !is_same {
            caller.charge_take();
        }
    }

    fn judge(&self, woken: Result<Option<Grant>, Error>, errors: &mut Backoff) -> Woken {
        match woken {
            Ok(Some(grant)) if self.is_believable(&grant) => Woken::Granted(grant),
            Ok(_) => Woken::Again,
            Err(error) => {
                tracing::debug!(name = %self.claim.name, %error, "waiting failed; asking again");
                Woken::AgainIn(errors.next_pause())
            }
        }
    }

    /// Whether the client could still believe in the grant when it gets the answer.
    fn is_believable(&self, grant: &Grant) -> bool {
        let drift = grant.lease / 100 + Duration::from_millis(2);
        let spare = TO_SPARE.min(grant.lease / 4);
        let until = grant.counted_from + grant.lease.saturating_sub(drift + spare);
        self.replica.clock.now() < until
    }

    /// Whether a first grant is as long as the lease that the client asked for.
    fn is_whole(&self) -> bool {
        self.replica.bound.is_none() || self.replica.window >= self.ttl
    }

    fn ended(&self) -> Refusal {
        ended(self.claim.id)
    }

    fn granted(&self, grant: &Grant, caller: &Caller, waited: bool) -> Result<Taken, Refusal> {
        let claim = &self.claim;
        let (token, until) = (grant.tokens.first, grant.counted_from + grant.lease);
        let told = self.replica.tells(claim.id, token, until);
        let told = told.ok_or_else(|| self.ended())?;
        let line = |line: Line| line.name(claim.name.as_str()).claim(claim.id).token(token);
        caller.note_if_grants(line, Deed::Grant);
        let replica = &self.replica;
        let wait = waited.then(|| replica.clock.now().since(self.since));
        replica.metrics.granted(&claim.name, claim.mode, wait);
        match waited {
            true => replica.events.granted(claim.id, &claim.name, token, until),
            false => replica.events.began(claim.id, &claim.name, token, until),
        }
        let sequencer = Sequencer::new(claim.name.clone(), claim.mode, token, claim.id);
        let body = Granted {
            state: WordHeld::Held,
            claim: claim.id,
            token,
            sequencer: sequencer.to_string(),
            mode: ModeWord::of(claim.mode).0,
            lease_ms_since_sent: since_sent(told, self.received),
            full_ttl: grant.lease >= self.ttl && self.is_whole(),
            release_requested: false,
        };
        Ok(Taken::Granted(body))
    }

    fn waiting(&self, place: &Place) -> Waiting {
        Waiting {
            state: WordWaiting::Waiting,
            ahead: place.ahead,
            poll_within_ms: millis(self.replica.window),
            stalled: place.stalled.as_deref().map(str::to_owned),
        }
    }

    fn held(&self) -> Refusal {
        let name = self.claim.name.clone();
        Refusal::new(Kind::Held, format!("lock {name} is held by another client"))
    }
}

fn ended(id: ClaimId) -> Refusal {
    let detail =
        format!("the claim {id} has ended at this replica, or is for another lock; take a new id");
    Refusal::new(Kind::Ended, detail)
}

/// Calls the store, and awaits the result. The visit has the turn, and knows afterwards whether the claim may wait.
async fn place(
    replica: &Arc<Replica>,
    claim: Claim,
    mut visit: Visit,
) -> Result<(Result<Standing, Error>, Visit), Refusal> {
    let asked = Arc::clone(replica);
    let call = async move {
        let standing = asked.engine.place(&claim).await;
        asked.hear(&standing);
        if let Some(bound) = &asked.bound {
            match &standing {
                // If its client is gone, the claim ends at its deadline.
                Ok(Standing::Held(grant)) => bound.holds(&claim, grant.tokens.first),
                Ok(Standing::Busy) => bound.is_not_there(claim.id),
                // A late copy of the request must not place it anew.
                Ok(Standing::Ended) => bound.end(claim.id),
                _ => {}
            }
        }
        match &standing {
            Ok(Standing::Held(_) | Standing::Busy) => visit.waits_no_more(),
            Err(error) if !error.is_retryable() => visit.waits_no_more(),
            _ => visit.may_wait(),
        }
        (standing, visit)
    };
    replica.carry(call).await
}
