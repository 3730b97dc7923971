//! Brings a claim to hold at the store: places it, waits for a change, places it again.

use std::sync::Arc;
use std::time::Duration;

use super::caller::Caller;
use super::hold::valid_until;
use super::state::State;
use super::withdraw::{AFTER_ERROR, undo};
use crate::engine::{Claim, Grant, Place, Standing};
use crate::layers::was_not_asked;
use crate::support::{Backoff, jitter};
use crate::types::{Error, Result};

/// How a request waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Whether it waits at all.
    pub(crate) waits: bool,
    /// Whether it waits in the queue. Otherwise it tries again and again.
    pub(crate) fair: bool,
    /// How often it tries at most.
    pub(crate) attempts: Option<u32>,
    /// The shortest and the longest pause between two attempts.
    pub(crate) pauses: (Duration, Duration),
}

/// How many grants may come too late to be believed before a request gives up.
const TOO_LATE: u32 = 5;

/// Brings a claim to hold. After any other end the store keeps nothing of the claim, or the claim is being withdrawn in the
/// background.
///
/// The claim gets a new id if the store ends it while it waits.
///
/// Must not be dropped before its end. A caller that no longer waits says so through `caller`.
pub(crate) async fn place(
    state: &Arc<State>,
    claim: &mut Claim,
    patience: Patience,
    caller: &Caller,
) -> Result<Grant> {
    let first = state.engine.place(claim).await;
    match first {
        Ok(Standing::Held(grant)) if is_believable(state, &grant) => Ok(grant),
        // Boxed, so that the future of an uncontended lock stays small.
        first => Box::pin(Placing::new(state, claim, patience, caller).go_on(first)).await,
    }
}

/// A claim whose first answer was not a grant.
struct Placing<'a> {
    state: &'a Arc<State>,
    claim: &'a mut Claim,
    patience: Patience,
    caller: &'a Caller,
    attempts: u32,
    too_late: u32,
    after_error: Backoff,
    between: Backoff,
    /// Whether the store says that it has something of this claim.
    placed: bool,
    /// Whether a request had no answer. It may still take effect, even if a later answer finds nothing.
    unsure: bool,
}

/// What to do after an answer of the store.
enum Next {
    Granted(Grant),
    Pause(Duration),
    Wait(Place),
}

impl<'a> Placing<'a> {
    fn new(
        state: &'a Arc<State>,
        claim: &'a mut Claim,
        patience: Patience,
        caller: &'a Caller,
    ) -> Self {
        Self {
            state,
            claim,
            patience,
            caller,
            attempts: 0,
            too_late: 0,
            after_error: Backoff::new(AFTER_ERROR.0, AFTER_ERROR.1),
            between: Backoff::new(patience.pauses.0, patience.pauses.1),
            placed: false,
            unsure: false,
        }
    }

    async fn go_on(mut self, mut answer: Result<Standing>) -> Result<Grant> {
        loop {
            let granted = match self.judge(answer)? {
                Next::Granted(grant) => return Ok(grant),
                Next::Pause(pause) => {
                    self.pause(pause).await;
                    None
                }
                Next::Wait(place) => self.wait(&place).await,
            };
            if let Some(grant) = granted {
                return Ok(grant);
            }
            if self.caller.is_gone() || self.state.is_closed() {
                self.undo();
                return Err(Error::Closed);
            }
            answer = self.state.engine.place(self.claim).await;
        }
    }

    /// What follows from an answer. An error ends the request.
    fn judge(&mut self, answer: Result<Standing>) -> Result<Next> {
        match answer {
            Ok(Standing::Held(grant)) => {
                self.placed = true;
                self.caller.hear_answer();
                if is_believable(self.state, &grant) {
                    return Ok(Next::Granted(grant));
                }
                self.came_too_late()
            }
            Ok(Standing::Waiting(place)) => {
                self.placed = true;
                match &place.stalled {
                    None => self.caller.hear_answer(),
                    Some(why) => self.caller.hear_stall(why),
                }
                Ok(Next::Wait(place))
            }
            Ok(Standing::Busy) => {
                self.placed = false;
                self.caller.hear_answer();
                if self.was_last_attempt() {
                    self.undo();
                    let name = self.claim.name.clone();
                    return Err(Error::Held { name });
                }
                Ok(Next::Pause(self.between.next_pause()))
            }
            Ok(Standing::Ended) => self.ended(),
            Err(error) if error.is_retryable() => {
                tracing::debug!(name = %self.claim.name, %error, "placing a claim failed");
                let asked = !was_not_asked(&error);
                self.unsure |= asked;
                if self.was_last_attempt() {
                    self.undo();
                    return Err(error);
                }
                self.caller.hear_failure(&error);
                Ok(Next::Pause(match asked {
                    true => self.after_error.next_pause(),
                    // At random, so that requests that were not sent are not all sent at once.
                    false => jitter(AFTER_ERROR.1),
                }))
            }
            Err(error) => {
                // Another part of the call may have taken effect, if any was sent.
                let is_unsent = matches!(
                    error,
                    Error::Invalid { .. } | Error::Unsupported { .. } | Error::Closed
                );
                self.unsure |= !is_unsent;
                self.undo();
                Err(error)
            }
        }
    }

    /// Handles the end of the claim: the store has ended it, or the process that kept it is gone. Withdraws what is left of it,
    /// and continues with a new claim.
    fn ended(&mut self) -> Result<Next> {
        undo(self.state, self.claim);
        (self.placed, self.unsure) = (false, false);
        if self.was_last_attempt() {
            let action = format!("taking lock {}", self.claim.name);
            let cause = "its claim ended at the store; ask again";
            return Err(Error::unavailable(&self.state.engine, action, cause));
        }
        self.claim.id = self.state.ids.next();
        tracing::debug!(name = %self.claim.name, id = %self.claim.id, "the claim ended; requesting the lock anew");
        Ok(Next::Pause(self.after_error.next_pause()))
    }

    /// Handles a grant whose answer took longer than its lease. The claim is placed again, which prolongs it if it still holds;
    /// a few times at most.
    fn came_too_late(&mut self) -> Result<Next> {
        self.too_late += 1;
        if self.patience.waits && self.too_late < TOO_LATE {
            return Ok(Next::Pause(self.after_error.next_pause()));
        }
        self.undo();
        let action = format!("taking lock {}", self.claim.name);
        let cause = "its answers take longer than the ttl; use a longer one";
        Err(Error::unavailable(&self.state.engine, action, cause))
    }

    /// Counts an attempt. True if it was the last one.
    fn was_last_attempt(&mut self) -> bool {
        self.attempts += 1;
        let most = self.patience.attempts;
        !self.patience.waits || most.is_some_and(|most| self.attempts >= most)
    }

    /// Withdraws in the background what the store may have of the claim.
    fn undo(&self) {
        if self.placed || self.unsure {
            undo(self.state, self.claim);
        }
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.caller.gone(&self.state.closing) => {}
        }
    }

    /// Waits until the claim should be placed again, or its grant has come.
    async fn wait(&mut self, place: &Place) -> Option<Grant> {
        let waited = tokio::select! {
            biased;
            waited = self.state.engine.wait(self.claim, place) => waited,
            () = self.caller.gone(&self.state.closing) => Ok(None),
            () = self.state.clock.sleep_until(place.recheck) => Ok(None),
        };
        match waited {
            Ok(grant) => {
                // Otherwise a few errors in a long time would make later pauses so long that they cost the place in the queue.
                self.after_error.reset();
                grant.filter(|grant| is_believable(self.state, grant))
            }
            Err(error) => {
                tracing::debug!(name = %self.claim.name, %error, "waiting failed; asking again");
                self.caller.hear_failure(&error);
                let pause = self.after_error.next_pause();
                self.pause(pause).await;
                None
            }
        }
    }
}

fn is_believable(state: &State, grant: &Grant) -> bool {
    state.clock.now() < valid_until(grant.counted_from, grant.lease)
}
