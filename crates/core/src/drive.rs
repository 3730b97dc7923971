//! The life of one claim at the store: place, wait for a change, hold; or withdraw, repeated until that is final.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::Inner;
use crate::engine::{Claim, Grant, Leave, Place, Standing, Withdrawn};
use crate::error::{Error, Result};
use crate::hold::valid_until;

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

/// Shared by a future and what goes on behind it: has the caller gone away, and what did the store say last?
#[derive(Debug, Default)]
pub(crate) struct Caller {
    gone: AtomicBool,
    news: Notify,
    last_error: Mutex<Option<Error>>,
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

    fn heard(&self, error: Option<Error>) {
        *self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The store's last answer, if it was none.
    pub(crate) fn last_error(&self) -> Option<Error> {
        let mut last = self.last_error.lock();
        last.as_mut()
            .map_or_else(|e| e.get_mut().take(), |last| last.take())
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
        let last = shortest;
        Self {
            shortest,
            longest,
            last,
        }
    }

    fn next(&mut self) -> Duration {
        let low = self.shortest.as_micros() as u64;
        let high = (self.last.as_micros() as u64).saturating_mul(3).max(low);
        self.last = Duration::from_micros(fastrand::u64(low..=high)).min(self.longest);
        self.last
    }
}

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
    let mut attempts = 0u32;
    let mut after_error = Jitter::new(AFTER_ERROR);
    let mut between = Jitter::new(patience.pauses);
    // Whether anything of this claim may be at the store.
    let mut placed = false;
    loop {
        if caller.is_gone() || inner.is_closed() {
            if placed {
                undo(inner, claim).await;
            }
            return Err(Error::Closed);
        }
        let (pause, place) = match inner.engine.place(claim).await {
            Ok(Standing::Held(grant)) => {
                placed = true;
                caller.heard(None);
                if believable(inner, &grant) {
                    return Ok(grant);
                }
                // The answer came too late to believe in. Placing again prolongs what still holds.
                (Some(Duration::ZERO), None)
            }
            Ok(Standing::Waiting(place)) => {
                placed = true;
                caller.heard(None);
                (None, Some(place))
            }
            Ok(Standing::Busy) => {
                placed = false;
                caller.heard(None);
                attempts += 1;
                if !patience.waits || patience.attempts.is_some_and(|most| attempts >= most) {
                    let name = claim.name.clone();
                    return Err(Error::Held { name });
                }
                (Some(between.next()), None)
            }
            Err(error) if error.is_transient() => {
                tracing::debug!(name = %claim.name, %error, "placing a claim failed");
                placed = true;
                attempts += 1;
                if !patience.waits || patience.attempts.is_some_and(|most| attempts >= most) {
                    let claim = claim.clone();
                    inner.behind(|inner| async move { undo(&inner, &claim).await });
                    return Err(error);
                }
                caller.heard(Some(error));
                (Some(after_error.next()), None)
            }
            Err(error) => {
                if placed {
                    let claim = claim.clone();
                    inner.behind(|inner| async move { undo(&inner, &claim).await });
                }
                return Err(error);
            }
        };
        if let Some(pause) = pause {
            if !pause.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = caller.gone(inner) => {}
                }
            }
            continue;
        }
        let Some(place) = place else { continue };
        match wait(inner, claim, &place, caller).await {
            Ok(Some(grant)) if believable(inner, &grant) => return Ok(grant),
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(name = %claim.name, %error, "waiting failed; asking again");
                caller.heard(Some(error));
                tokio::select! {
                    () = tokio::time::sleep(after_error.next()) => {}
                    () = caller.gone(inner) => {}
                }
            }
        }
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
        changed = inner.engine.changed(claim, place) => changed,
        () = caller.gone(inner) => Ok(None),
        () = inner.clock.sleep_until(place.recheck) => Ok(None),
    }
}

/// Withdraws what may be left of a claim that was not granted, as far as its caller knows.
pub(crate) async fn undo(inner: &Inner, claim: &Claim) {
    insist(inner, claim, Leave::Release).await;
}

/// Withdraws a claim again and again, until that is final or the longest lease that it can have by now has ended.
pub(crate) async fn insist(inner: &Inner, claim: &Claim, how: Leave) {
    let over = inner.clock.now() + claim.ttl + claim.lock_delay;
    let mut pauses = Jitter::new(AFTER_ERROR);
    while let Err(error) = withdraw(inner, claim, how).await {
        let name = &claim.name;
        if inner.clock.now() >= over {
            tracing::warn!(%name, %error, "a claim could not be withdrawn; its lease is over by now");
            return;
        }
        if !error.is_transient() {
            tracing::warn!(%name, %error, "a claim cannot be withdrawn; its lease will end it");
            return;
        }
        tokio::time::sleep(pauses.next()).await;
    }
}

/// One withdrawal; an answer that is not final is an error.
pub(crate) async fn withdraw(inner: &Inner, claim: &Claim, how: Leave) -> Result<Withdrawn> {
    match inner.engine.withdraw(claim, how).await? {
        Withdrawn::Unknown => {
            let action = format!("withdrawing from lock {}", claim.name);
            let cause = "an earlier request may still take effect; withdrawing again behind";
            Err(Error::unavailable(&inner.engine, action, cause))
        }
        withdrawn => Ok(withdrawn),
    }
}
