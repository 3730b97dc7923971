//! Waiting: one request after the other. Each keeps the place in the queue, and waits at the service for a while.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencelock_core::engine::{Claim, Grant, Place, Standing};
use fencelock_core::support::Backoff;
use fencelock_core::{Clock, Error, Result};
use http::StatusCode;
use tokio::time::timeout;

use crate::acquire::{Wait, judge, put};
use crate::batch::read_line;
use crate::connection::{Answer, NoAnswer, UNREAD};
use crate::error::{Action, RequestError};
use crate::reply::Reply;
use crate::state::State;

/// The shortest and the longest pause after an answer that came much too early.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// How much longer than the requested wait an answer may take: the least and the most.
const SLACK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Waits for a claim that has a place. Returns the grant. `None` if the place is not known here, or has changed.
pub(crate) async fn wait(
    state: &Arc<State>,
    claim: &Claim,
    place: &Place,
) -> Result<Option<Grant>> {
    let mut early = Backoff::new(PAUSES.0, PAUSES.1);
    while state.entries.is_waiting(&claim.id) {
        if state.is_closed() {
            return Err(Error::Closed);
        }
        let begun = Clock::Boot.now();
        let answer = match state.entries.take_told(&claim.id) {
            Some(told) => Told::new(state, claim, told).standing().await,
            None => poll(state, claim).await,
        };
        match answer? {
            Standing::Held(grant) => return Ok(Some(grant)),
            // The core places the claim again, and learns why the store grants nothing, or that it grants again.
            Standing::Waiting(now) if now.stalled != place.stalled => return Ok(None),
            Standing::Waiting(_) => {}
            // The claim was waiting, so this answer does not come from the service.
            _ => return Ok(None),
        }
        if Clock::Boot.now().since(begun) < state.info.poll() / 4 {
            tokio::time::sleep(early.next_pause()).await;
        } else {
            early = Backoff::new(PAUSES.0, PAUSES.1);
        }
    }
    Ok(None)
}

/// Sends one request that waits.
async fn poll(state: &Arc<State>, claim: &Claim) -> Result<Standing, RequestError> {
    // If this wait is dropped, the request still runs to its answer. Then a release knows that the request cannot take effect
    // later.
    let first = state.replicas.order(Some(&claim.id)).first().copied();
    let open = state.entries.poll(&claim.id, first.unwrap_or_default());
    let (own, claim) = (Arc::clone(state), claim.clone());
    let asked = tokio::spawn(async move {
        let at = Some(open.replica);
        let answer = put(&own, &claim, Wait::Silently, limit(&own), at).await;
        // The task owns all of it, because the wait may be dropped.
        drop(open);
        answer
    });
    asked.await.unwrap_or_else(|ended| {
        let why = format!("a poll ended: {ended}");
        Err(Error::internal(&state.config.store, why).into())
    })
}

/// How long the answer to a request that waits may take.
fn limit(state: &State) -> Duration {
    let (wait, window) = (state.info.poll(), state.info.window());
    wait + (window / 4).clamp(SLACK.0, SLACK.1)
}

/// A poll whose place is known. If this is dropped, its second line can be read later.
struct Told<'a> {
    state: &'a Arc<State>,
    claim: &'a Claim,
    reply: Option<Reply>,
}

impl<'a> Told<'a> {
    fn new(state: &'a Arc<State>, claim: &'a Claim, reply: Reply) -> Self {
        Self {
            state,
            claim,
            reply: Some(reply),
        }
    }

    /// Reads the result of the poll.
    async fn standing(mut self) -> Result<Standing, RequestError> {
        let (state, claim) = (self.state, self.claim);
        let line = match &mut self.reply {
            Some(reply) => second_line(reply, limit(state)).await,
            None => Err("it was read before".to_owned()),
        };
        let Some(mut told) = self.reply.take() else {
            let why = "the answer to a poll was read before";
            return Err(Error::internal(&state.config.store, why).into());
        };
        let (index, sent) = (told.replica.index(), told.sent);
        let address = told.replica.address(&state.replicas);
        let read = line.and_then(|line| {
            let (id, status, body) = read_line(&line).ok_or("its second line cannot be read")?;
            match id == claim.id {
                true => Ok((status, body)),
                false => Err("its second line is about another claim".to_owned()),
            }
        });
        let (status, body) = read.map_err(|why| {
            state.replicas.failed(index);
            state.entries.doubt(&claim.id, sent);
            let action = Action::of("taking", &claim.name);
            state.no_answer(address, action, NoAnswer::InDoubt(why))
        })?;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            state.replicas.failed(index);
        }
        if let Some(rest) = told.answer.rest.take() {
            state.connections.keep_ended(address, rest);
        }
        let answer = Answer {
            status,
            body,
            ..told.answer
        };
        judge(state, claim, Reply { answer, ..told })
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            drop(self.state.entries.keep_told(&self.claim.id, reply));
        }
    }
}

/// Reads in the background until the poll has ended, even if that is soon: a release must be sent after its end.
pub(crate) fn end_told(state: &Arc<State>, claim: &Claim) {
    let Some(mut told) = state.entries.take_told(&claim.id) else {
        return;
    };
    let open = state.entries.poll(&claim.id, told.replica.index());
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let read = second_line(&mut told, limit(&state)).await;
        if read.is_ok()
            && let Some(rest) = told.answer.rest.take()
        {
            let address = told.replica.address(&state.replicas);
            state.connections.keep_ended(address, rest);
        }
        drop(open);
    });
}

/// The line with the result of a poll. Cancel safe.
async fn second_line(told: &mut Reply, limit: Duration) -> Result<Bytes, String> {
    let left = (told.sent + limit).since(Clock::Boot.now());
    let Some(rest) = &mut told.answer.rest else {
        return Err("it has one line only".to_owned());
    };
    let line = match timeout(left, rest.next()).await {
        Ok(line) => line,
        Err(_) => match timeout(UNREAD, rest.next()).await {
            Ok(line) => line,
            Err(_) => return Err(format!("no answer within {limit:?}")),
        },
    };
    let line = line.map_err(|error| error.to_string())?;
    line.ok_or_else(|| "it ended after its first line".to_owned())
}
