//! The simple mode: `POST /v1/claims`. One request takes a lock, and waits for it. The replica draws the claim and its key,
//! places the claim again while the request is open, and confirms the grant. So the answer has the whole lease.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use fencelock_core::engine::{Claim, HeldClaim, Leave, Place, Renewal, Standing};
use fencelock_core::support::Backoff;
use fencelock_core::{BootInstant, CancellationToken, ClaimId, ClaimIds, Error, Sequencer, Token};
use fencelock_wire::{ClaimKey, Kind, SimpleGrant, SimpleTake, millis};
use http::StatusCode;
use http_body::{Frame, SizeHint};

use crate::asked::{Asked, since_sent};
use crate::audit::Deed;
use crate::caller::Caller;
use crate::incoming::{Json, Received};
use crate::known::Visit;
use crate::principal::Right;
use crate::refusal::Refusal;
use crate::replica::Replica;
use crate::reply::json;

/// The longest wait of one request.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The shortest and the longest pause after an error of the store.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

pub(crate) async fn take(
    State(replica): State<Arc<Replica>>,
    Received(received): Received,
    caller: Caller,
    Json(body): Json<SimpleTake>,
) -> Result<Response, Refusal> {
    let wait = Duration::from_millis(body.wait_ms);
    if wait > LONGEST_WAIT {
        let detail = format!("wait_ms is at most {}", millis(LONGEST_WAIT));
        return Err(Refusal::invalid(detail));
    }
    let no_random = |_| Refusal::new(Kind::Internal, "the system has no random numbers");
    let key = ClaimKey::draw().map_err(no_random)?;
    let ids = ClaimIds::with(key.claim_ids());
    let claim = Asked::from(body).claim(ids.next(), &replica, &caller)?;
    let (name, mode, ttl) = (claim.name.clone(), claim.mode, claim.ttl);
    if replica.draining.is_cancelled() {
        return Err(Refusal::draining(&name));
    }
    let waiting = match wait.is_zero() {
        true => None,
        false => Some((caller.count_waiter(&name)?, replica.open_poll(false)?)),
    };
    caller.count_take(&name)?;
    let caller = Arc::new(caller);
    let taking = Taking {
        claim: claim.ttl(replica.first_ttl(ttl)).wait(!wait.is_zero()),
        ttl,
        received,
        until: received + wait,
        gone: CancellationToken::new(),
        caller: Arc::clone(&caller),
        replica: Arc::clone(&replica),
    };
    let taken = take_by(taking, &ids).await;
    drop(waiting);
    let Taken {
        id,
        token,
        lease_ms_since_sent,
        waited,
        undo,
    } = taken.map_err(|refusal| refusal.name(&name))?;
    caller.note_if_grants(
        |line| line.name(name.as_str()).claim(id).token(token),
        Deed::Grant,
    );
    let wait = waited.then(|| replica.clock.now().since(received));
    replica.metrics.granted(&name, mode, wait);
    let until = received + Duration::from_millis(lease_ms_since_sent);
    // Nobody else knows the key yet.
    replica.events.began(id, &name, token, until);
    let sequencer = Sequencer::new(name.clone(), mode, token, id);
    // The replica to which the claim is bound, if it is.
    let home = replica.bound.is_some().then_some(&replica);
    let body = SimpleGrant {
        claim: id,
        key: key.secret().to_owned(),
        name,
        token,
        sequencer: sequencer.to_string(),
        lease_ms_since_sent,
        ttl_ms: millis(ttl),
        replica: home.map(|home| home.id.clone()),
        advertise: home.and_then(|home| home.config.advertise.clone()),
    };
    let response = json(StatusCode::CREATED, &body);
    Ok(response.map(|body| {
        Body::new(Answer {
            body,
            undo: Some(undo),
        })
    }))
}

/// A lock that was taken, and is given back unless its client gets the answer.
struct Taken {
    id: ClaimId,
    token: Token,
    lease_ms_since_sent: u64,
    waited: bool,
    undo: Undo,
}

/// Takes the lock by one claim after the other, if the store ends those that wait. It does so where a set of stores moves.
async fn take_by(mut taking: Taking, ids: &ClaimIds) -> Result<Taken, Refusal> {
    let replica = Arc::clone(&taking.replica);
    let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
    loop {
        let id = taking.claim.id;
        let undo = Undo {
            replica: Arc::clone(&replica),
            claim: Some(taking.claim.clone().ttl(taking.ttl)),
            ended: taking.gone.clone(),
        };
        let visit = replica.known.enter(id);
        // In a task of its own: if the client goes away, the outcome is known before the claim is withdrawn.
        match replica.carry(taking.clone().run(visit)).await? {
            Ok((token, lease_ms_since_sent, waited)) => {
                return Ok(Taken {
                    id,
                    token,
                    lease_ms_since_sent,
                    waited,
                    undo,
                });
            }
            Err(failed) => {
                undo.was_undone();
                match failed {
                    Failed::Refused(refusal) => return Err(refusal),
                    Failed::Ended if replica.clock.now() >= taking.until => {
                        return Err(taking.ended());
                    }
                    Failed::Ended => tokio::time::sleep(pauses.next_pause()).await,
                }
            }
        }
        taking.claim.id = ids.next();
    }
}

/// Why a claim does not hold.
enum Failed {
    Refused(Refusal),
    /// The store has ended it. Another claim may hold.
    Ended,
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// One request in the simple mode.
#[derive(Clone)]
struct Taking {
    replica: Arc<Replica>,
    caller: Arc<Caller>,
    /// The claim with the lease of a first grant.
    claim: Claim,
    ttl: Duration,
    received: BootInstant,
    until: BootInstant,
    /// Cancelled when the client is gone.
    gone: CancellationToken,
}

impl Taking {
    /// Takes and confirms. After an error nothing of the claim is left, or it is being withdrawn.
    async fn run(self, mut visit: Visit) -> Result<(Token, u64, bool), Failed> {
        visit.take_turn().await;
        let granted = match self.wait(&mut visit).await {
            Ok(Some((token, waited))) => {
                let confirmed = self.confirm(token, visit).await;
                confirmed
                    .map(|lease| (token, lease, waited))
                    .map_err(Failed::from)
            }
            Ok(None) => {
                visit.waits_no_more();
                return Err(self.held().into());
            }
            Err(failed) => {
                drop(visit);
                Err(failed)
            }
        };
        // If the client is gone, `Undo` withdraws the claim.
        if granted.is_err() && !self.gone.is_cancelled() {
            self.withdraw().await;
        }
        granted
    }

    /// Waits until the claim holds. Returns its token, and whether it had to wait. `None` if the lock is held and the request
    /// must not wait: the store keeps nothing of the claim.
    async fn wait(&self, visit: &mut Visit) -> Result<Option<(Token, bool)>, Failed> {
        let mut errors = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
        let replica = &self.replica;
        let mut waited = false;
        let mut refused = pin!(self.caller.loses(Right::Take, &self.claim.name));
        replica.check_fresh(self.received)?;
        loop {
            if let Some(bound) = &replica.bound {
                let placing = bound.placing(&self.claim, replica.clock.now() + replica.window);
                placing.map_err(|_| self.held())?;
            }
            let standing = replica.engine.place(&self.claim).await;
            replica.hear(&standing);
            let place = match standing.map_err(|error| Refusal::of(&error))? {
                Standing::Held(grant) => {
                    visit.waits_no_more();
                    return Ok(Some((grant.tokens.first, waited)));
                }
                Standing::Waiting(place) => place,
                // The caller withdraws what is left of it.
                Standing::Ended => return Err(Failed::Ended),
                _ => {
                    if let Some(bound) = &replica.bound {
                        bound.is_not_there(self.claim.id);
                    }
                    return Ok(None);
                }
            };
            waited = true;
            // A place in the queue lasts one window.
            let again = place.recheck.min(replica.clock.now() + replica.poll());
            tokio::select! {
                biased;
                () = self.gone.cancelled() => return Err(self.held().into()),
                () = replica.draining.cancelled() => return Err(self.held().into()),
                refusal = &mut refused => return Err(refusal.into()),
                () = replica.clock.sleep_until(self.until) => return Err(self.gave_up(&place).into()),
                woken = replica.engine.wait(&self.claim, &place) => if let Err(error) = woken {
                    tracing::debug!(name = %self.claim.name, %error, "waiting failed; asking again");
                    tokio::time::sleep(errors.next_pause()).await;
                },
                () = replica.clock.sleep_until(again) => {}
            }
        }
    }

    /// Renews the first time, which prolongs the grant to the whole lease.
    async fn confirm(&self, token: Token, visit: Visit) -> Result<u64, Refusal> {
        let held = HeldClaim::new(self.claim.clone().ttl(self.ttl), token);
        if let Some(bound) = &self.replica.bound {
            let until = self.replica.clock.now() + self.ttl + self.claim.lock_delay;
            bound.holds(&self.claim, token);
            bound.renewing(&held, until).map_err(|_| grant_ended())?;
        }
        match self.replica.renewer.renew(held, visit).await {
            Renewal::Kept {
                counted_from,
                lease,
                ..
            } => {
                self.replica.hear(&Ok(()));
                let until = counted_from + lease;
                let told = self.replica.tells(self.claim.id, token, until);
                let told = told.ok_or_else(grant_ended)?;
                Ok(since_sent(told, self.received))
            }
            Renewal::Unknown(error) => {
                let refusal = Refusal::of(&error);
                self.replica.hear(&Err::<(), _>(error));
                Err(refusal)
            }
            _ => Err(grant_ended()),
        }
    }

    /// The refusal when the time to wait is over.
    fn gave_up(&self, place: &Place) -> Refusal {
        let Some(why) = &place.stalled else {
            return self.held();
        };
        let store = &self.replica.engine;
        let detail = format!(
            "store {store} grants nothing at this time, and nothing of the claim is left: {why}"
        );
        Refusal::new(Kind::Unavailable, detail)
    }

    /// The refusal when the store has ended the claim, and no time is left for another one.
    fn ended(&self) -> Refusal {
        let action = format!("taking lock {}", self.claim.name);
        let why = "the claim ended at the store; ask again";
        Refusal::of(&Error::unavailable(&self.replica.engine, action, why))
    }

    fn held(&self) -> Refusal {
        let name = &self.claim.name;
        let waited = self.until > self.received;
        let detail = match waited {
            _ if self.replica.draining.is_cancelled() => {
                let detail =
                    "this replica is about to end; nothing of the claim is left; use another one";
                return Refusal::new(Kind::Draining, detail).close();
            }
            true => format!("lock {name} is still held by another client after the time to wait"),
            false => format!("lock {name} is held by another client"),
        };
        Refusal::new(Kind::Held, detail)
    }

    /// Withdraws once before the answer, and continues in the background if the result was not final.
    async fn withdraw(&self) {
        let claim = self.claim.clone().ttl(self.ttl);
        let mut visit = self.replica.known.enter(claim.id);
        visit.take_turn().await;
        match self.replica.engine.withdraw(&claim, Leave::Release).await {
            Ok(_) => {
                visit.waits_no_more();
                withdrawn(&self.replica, claim.id);
            }
            Err(_) => withdraw_in_background(&self.replica, claim),
        }
    }
}

fn grant_ended() -> Refusal {
    let detail = "the grant ended before it could be confirmed; ask again";
    Refusal::new(Kind::Unavailable, detail)
}

fn withdrawn(replica: &Replica, id: ClaimId) {
    if let Some(bound) = &replica.bound {
        bound.ended(id);
    }
}

/// Withdraws a claim whose id nobody else knows, until the result is final or its lease is over.
fn withdraw_in_background(replica: &Arc<Replica>, claim: Claim) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let replica = Arc::clone(replica);
    runtime.spawn(async move {
        let ends = replica.clock.now() + claim.ttl + claim.lock_delay;
        let mut pauses = Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1);
        let mut visit = replica.known.enter(claim.id);
        visit.take_turn().await;
        loop {
            match replica.engine.withdraw(&claim, Leave::Release).await {
                Ok(_) => {
                    withdrawn(&replica, claim.id);
                    break visit.waits_no_more();
                }
                Err(error) if !error.is_retryable() || replica.clock.now() >= ends => {
                    let name = &claim.name;
                    tracing::warn!(%name, %error, "a claim could not be withdrawn; its lease ends it");
                    break;
                }
                Err(_) => tokio::time::sleep(pauses.next_pause()).await,
            }
        }
    });
}

/// Releases the lock if it is dropped before a byte of the answer was written.
struct Undo {
    replica: Arc<Replica>,
    /// `None` once the answer is being sent, or nothing is left to be undone.
    claim: Option<Claim>,
    ended: CancellationToken,
}

impl Undo {
    fn was_undone(mut self) {
        self.claim = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some(claim) = self.claim.take() else {
            return;
        };
        // If the request is still being served, its task ends soon, and then this withdrawal has the turn.
        self.ended.cancel();
        withdraw_in_background(&self.replica, claim);
    }
}

/// The body of the answer. Once it is polled, the answer is being written.
struct Answer {
    body: Body,
    undo: Option<Undo>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(undo) = self.undo.take() {
            undo.was_undone();
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
