//! One guard's share of a hold. Dropping it ends the share; the last one releases the lock in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use super::cancel::Cancel;
use super::hold::Hold;
use super::observer::note_outcome;
use super::state::State;
use super::withdraw;
use crate::types::{Error, Release, Result, Token};

/// A share of a hold.
pub(crate) struct Share {
    pub(crate) state: Arc<State>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: Token,
    left: AtomicBool,
    /// Cancelled when this share ends, or its hold.
    pub(crate) cancel: Cancel,
}

impl Share {
    pub(crate) fn new(state: Arc<State>, hold: Arc<Hold>) -> Self {
        hold.add_guard();
        Self::of_counted(state, hold)
    }

    /// A share of a hold that already counts it.
    pub(crate) fn of_counted(state: Arc<State>, hold: Arc<Hold>) -> Self {
        let token = hold.token();
        let left = AtomicBool::new(false);
        Self {
            state,
            hold,
            token,
            left,
            cancel: Cancel::default(),
        }
    }

    /// Drops the share without changing the hold or its count.
    pub(crate) fn dissolve(self) {
        self.left.store(true, Ordering::SeqCst);
        self.hold.drop_guard();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// A token that is cancelled when this share ends, or its hold.
    pub(crate) fn cancellation_token(&self) -> CancellationToken {
        let parent = || self.hold.cancel.token(CancellationToken::new);
        self.cancel.token(|| parent().child_token())
    }

    pub(crate) fn is_valid(&self) -> bool {
        !self.has_left() && self.hold.is_valid()
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.has_left() {
            true => Duration::ZERO,
            false => self.hold.remaining(),
        }
    }

    /// Ends the share; the last one releases the lock.
    pub(crate) async fn release(&self) -> Result<Release> {
        let had_left = self.has_left();
        if !self.is_last() {
            return Ok(match !had_left && self.hold.is_valid() {
                true => Release::Released,
                false => Release::AlreadyExpired,
            });
        }
        let span = self.release_span();
        if self.hand_on(&span) {
            return Ok(Release::Released);
        }
        self.state.background.carry(self.leave(span)).await
    }

    /// Marks this share as ended; true if it was the last one of a hold that must be given back.
    fn is_last(&self) -> bool {
        if self.left.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.cancel.cancel();
        let last = self.hold.drop_guard();
        self.hold.news.notify_waiters();
        if last {
            self.hold.seen.close("released");
        }
        last && !self.hold.joined
    }

    fn release_span(&self) -> Span {
        let (name, mode) = (&self.hold.claim.name, self.hold.mode());
        self.state.observed.release_span(name, mode)
    }

    /// Gives the hold back to the store.
    fn leave(&self, span: Span) -> impl Future<Output = Result<Release>> + Send + 'static {
        let leave = withdraw::leave(Arc::clone(&self.state), Arc::clone(&self.hold), self.token);
        async move {
            let left = leave.instrument(span.clone()).await;
            let outcome = left
                .as_ref()
                .map_or_else(Error::as_str, |left| left.as_str());
            note_outcome(&span, outcome);
            left
        }
    }

    /// Hands the hold on to the next task of this process, if that is possible.
    fn hand_on(&self, span: &Span) -> bool {
        let handed_on = self.state.queues.leave(&self.hold);
        if !handed_on {
            self.hold.seen.end();
        } else {
            note_outcome(span, "handed_on");
            let (name, token) = (&self.hold.claim.name, self.token);
            self.state
                .observed
                .tell(|observer| observer.released(name, token));
        }
        handed_on
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.is_last() {
            return;
        }
        let span = self.release_span();
        if self.hand_on(&span) {
            return;
        }
        let leave = self.leave(span);
        let name = self.hold.claim.name.clone();
        self.state.background.run(async move {
            if let Err(error) = leave.await {
                tracing::debug!(%name, %error, "releasing a dropped guard");
            }
        });
    }
}
