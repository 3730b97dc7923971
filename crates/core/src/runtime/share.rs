//! One guard's share of a hold. Dropping it ends the share; the last one releases the lock in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::hold::Hold;
use super::state::State;
use super::withdraw;
use crate::types::{Release, Result, Token};

/// A share of a hold.
pub(crate) struct Share {
    pub(crate) state: Arc<State>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: Token,
    left: AtomicBool,
}

impl Share {
    pub(crate) fn new(state: Arc<State>, hold: Arc<Hold>) -> Self {
        hold.add_guard();
        Self::of_counted(state, hold)
    }

    /// For a hold that counts this share already.
    pub(crate) fn of_counted(state: Arc<State>, hold: Arc<Hold>) -> Self {
        let token = hold.token();
        let left = AtomicBool::new(false);
        Self {
            state,
            hold,
            token,
            left,
        }
    }

    /// Drops the share without counting it off, and leaves the hold as it is.
    pub(crate) fn dissolve(self) {
        self.left.store(true, Ordering::SeqCst);
        self.hold.drop_guard();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::SeqCst)
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
        let valid = self.is_valid();
        if !self.is_last() {
            return Ok(match valid {
                true => Release::Released,
                false => Release::AlreadyExpired,
            });
        }
        if self.hand_on() {
            return Ok(Release::Released);
        }
        let leave = withdraw::leave(Arc::clone(&self.state), Arc::clone(&self.hold), self.token);
        self.state.background.carry(leave).await
    }

    /// Marks this share as ended; true if it was the last one of a hold that is to be given back.
    fn is_last(&self) -> bool {
        if self.left.swap(true, Ordering::SeqCst) {
            return false;
        }
        let last = self.hold.drop_guard();
        self.hold.news.notify_waiters();
        last && !self.hold.joined
    }

    /// Hands the hold on to the next task of this process, if that may be.
    fn hand_on(&self) -> bool {
        let handed_on = self.state.queues.leave(&self.hold);
        if handed_on {
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
        if !self.is_last() || self.hand_on() {
            return;
        }
        let leave = withdraw::leave(Arc::clone(&self.state), Arc::clone(&self.hold), self.token);
        let name = self.hold.claim.name.clone();
        self.state.background.run(async move {
            if let Err(error) = leave.await {
                tracing::debug!(%name, %error, "releasing a dropped guard");
            }
        });
    }
}
