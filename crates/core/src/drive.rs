//! The life of one claim at the store: place, wait for a change, hold; or withdraw, repeated until that is final.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::Inner;
use crate::engine::{Claim, Grant, Leave, Place, Standing};
use crate::hold::valid_until;
use crate::types::BootInstant;
use crate::types::{Error, Result};

/// How a wish waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Wait at all?
    pub(crate) waits: bool,
    /// Stand in line, or ask again and again?
    pub(crate) fair: bool,
    /// How often to ask at most.
    pub(crate) attempts: Option<u32>,
    /// The shortest and the longest pause between asking.
    pub(crate) pauses: (Duration, Duration),
}

/// What the store said last about a wish.
#[derive(Debug)]
pub(crate) enum Heard {
    /// Nothing yet.
    Nothing,
    /// Somebody else holds the lock.
    Held,
    /// There was no answer, and this is why.
    Failed(String),
}

/// Shared by a future and what goes on behind it: has the caller gone away, and what did the store say last?
#[derive(Debug, Default)]
pub(crate) struct Caller {
    gone: AtomicBool,
    answered: AtomicBool,
    news: Notify,
    failure: Mutex<Option<String>>,
}

impl Caller {
    pub(crate) fn leave(&self) {
        self.gone.store(true, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Returns once the caller has gone away or the client was closed.
    pub(crate) async fn gone(&self, inner: &Inner) {
        let (left, closing) = (self.news.notified(), inner.closing.notified());
        tokio::pin!(left, closing);
        left.as_mut().enable();
        closing.as_mut().enable();
        if !self.is_gone() && !inner.is_closed() {
            tokio::select! {
                () = left => {}
                () = closing => {}
            }
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear_answer(&self) {
        self.answered.store(true, Ordering::SeqCst);
    }

    fn hear_failure(&self, error: &Error) {
        *self.failure() = Some(match error {
            Error::Unavailable { cause, .. } => cause.to_string(),
            other => other.to_string(),
        });
        self.answered.store(false, Ordering::SeqCst);
    }

    /// The store's last word.
    pub(crate) fn heard(&self) -> Heard {
        if self.answered.load(Ordering::SeqCst) {
            return Heard::Held;
        }
        self.failure().clone().map_or(Heard::Nothing, Heard::Failed)
    }
}

/// Pauses that grow at random and are not in step with anybody else's (decorrelated jitter: Brooker, "Exponential
/// backoff and jitter", 2015).
struct Jitter {
    shortest: Duration,
    longest: Duration,
    last: Duration,
}

impl Jitter {
    fn new((shortest, longest): (Duration, Duration)) -> Self {
        // Never none at all, which would be a busy loop.
        let shortest = shortest.max(Duration::from_millis(1));
        Self {
            shortest,
            longest: longest.max(shortest),
            last: shortest,
        }
    }

    fn next(&mut self) -> Duration {
        let low = self.shortest.as_micros() as u64;
        let high = (self.last.as_micros() as u64).saturating_mul(3).max(low);
        self.last = Duration::from_micros(fastrand::u64(low..=high)).min(self.longest);
        self.last
    }
}

/// How many grants may come too late to believe in before a wish gives up.
const TOO_LATE: u32 = 5;

/// For how long a client that is being closed goes on asking a store that does not answer.
pub(crate) const CLOSING: Duration = Duration::from_secs(2);

/// The pauses after an error of the store.
const AFTER_ERROR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Brings a claim to hold. On any other end nothing of it is left at the store, or is being withdrawn behind.
///
/// May only be dropped if it has ended: whoever loses interest tells `caller`.
pub(crate) async fn drive(
    inner: &Arc<Inner>,
    claim: &Claim,
    patience: Patience,
    caller: &Caller,
) -> Result<Grant> {
    let first = inner.engine.place(claim).await;
    match first {
        Ok(Standing::Held(grant)) if believable(inner, &grant) => Ok(grant),
        // Boxed, so that the future of an uncontended lock stays small.
        first => Box::pin(drive_on(inner, claim, patience, caller, first)).await,
    }
}

/// Goes on after the first answer.
async fn drive_on(
    inner: &Arc<Inner>,
    claim: &Claim,
    patience: Patience,
    caller: &Caller,
    mut answer: Result<Standing>,
) -> Result<Grant> {
    let mut attempts = 0u32;
    let mut too_late = 0u32;
    let mut after_error = Jitter::new(AFTER_ERROR);
    let mut between = Jitter::new(patience.pauses);
    // Whether anything of this claim is at the store, or may come there: of what had no answer, also after one that says that
    // nothing is.
    let (mut placed, mut unsure) = (false, false);
    loop {
        let (pause, place) = match answer {
            Ok(Standing::Held(grant)) => {
                placed = true;
                caller.hear_answer();
                if believable(inner, &grant) {
                    return Ok(grant);
                }
                // The answer came too late to believe in. Placing again prolongs what still holds; but not for ever.
                too_late += 1;
                if !patience.waits || too_late >= TOO_LATE {
                    undo_behind(inner, claim);
                    let action = format!("taking lock {}", claim.name);
                    let cause = "its answers take longer than the ttl; use a longer one";
                    return Err(Error::unavailable(&inner.engine, action, cause));
                }
                (Some(after_error.next()), None)
            }
            Ok(Standing::Waiting(place)) => {
                placed = true;
                caller.hear_answer();
                (None, Some(place))
            }
            Ok(Standing::Busy) => {
                placed = false;
                caller.hear_answer();
                attempts += 1;
                if !patience.waits || patience.attempts.is_some_and(|most| attempts >= most) {
                    if unsure {
                        undo_behind(inner, claim);
                    }
                    let name = claim.name.clone();
                    return Err(Error::Held { name });
                }
                (Some(between.next()), None)
            }
            Err(error) if error.is_retryable() => {
                tracing::debug!(name = %claim.name, %error, "placing a claim failed");
                unsure = true;
                attempts += 1;
                if !patience.waits || patience.attempts.is_some_and(|most| attempts >= most) {
                    undo_behind(inner, claim);
                    return Err(error);
                }
                caller.hear_failure(&error);
                (Some(after_error.next()), None)
            }
            Err(error) => {
                if placed || unsure {
                    undo_behind(inner, claim);
                }
                return Err(error);
            }
        };
        if let Some(pause) = pause {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = caller.gone(inner) => {}
            }
        }
        let changed = match &place {
            Some(place) => wait(inner, claim, place, caller).await,
            None => Ok(None),
        };
        match changed {
            Ok(Some(grant)) if believable(inner, &grant) => return Ok(grant),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(name = %claim.name, %error, "waiting failed; asking again");
                caller.hear_failure(&error);
                tokio::select! {
                    () = tokio::time::sleep(after_error.next()) => {}
                    () = caller.gone(inner) => {}
                }
            }
        }
        if caller.is_gone() || inner.is_closed() {
            if placed || unsure {
                undo_behind(inner, claim);
            }
            return Err(Error::Closed);
        }
        answer = inner.engine.place(claim).await;
    }
}

fn believable(inner: &Inner, grant: &Grant) -> bool {
    inner.clock.now() < valid_until(grant.counted_from, grant.lease)
}

/// Waits until it is worth placing again, or the grant came by itself.
async fn wait(
    inner: &Inner,
    claim: &Claim,
    place: &Place,
    caller: &Caller,
) -> Result<Option<Grant>> {
    tokio::select! {
        biased;
        changed = inner.engine.wait(claim, place) => changed,
        () = caller.gone(inner) => Ok(None),
        () = inner.clock.sleep_until(place.recheck) => Ok(None),
    }
}

/// Withdraws, behind the caller's back, what may be left of a claim that was not granted as far as its caller knows.
pub(crate) fn undo_behind(inner: &Arc<Inner>, claim: &Claim) {
    let claim = claim.clone();
    let kept_until = inner.clock.now() + claim.ttl;
    inner.behind(move |inner| async move {
        insist(&inner, &claim, Leave::Release, kept_until).await;
    });
}

/// Withdraws a claim again and again, until that is final or the longest lease that it can have by now has ended:
/// `kept_until`, lock-delay aside.
pub(crate) async fn insist(inner: &Inner, claim: &Claim, how: Leave, kept_until: BootInstant) {
    let begun = inner.clock.now();
    let over = kept_until.max(begun + claim.ttl) + claim.lock_delay;
    let mut pauses = Jitter::new(AFTER_ERROR);
    while let Err(error) = inner.engine.withdraw(claim, how).await {
        let name = &claim.name;
        let over = match inner.is_closed() {
            true => over.min(begun + CLOSING),
            false => over,
        };
        if inner.clock.now() >= over {
            tracing::warn!(%name, %error, "a claim could not be withdrawn; its lease is over, or will end it");
            return;
        }
        if !error.is_retryable() {
            tracing::warn!(%name, %error, "a claim cannot be withdrawn; its lease will end it");
            return;
        }
        tokio::time::sleep(pauses.next()).await;
    }
}
