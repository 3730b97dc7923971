//! What a program may observe: counters and timings for whatever metrics it keeps. Logs go through `tracing`.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::types::{LockName, LossReason, Token};

/// Hears what happens to the locks of a client. Every method has an empty default; none may block.
/// A panic in one is logged, and changes nothing else.
pub trait Observer: Debug + Send + Sync + 'static {
    /// A lock was granted after `waited`; `handed_on`: within this process, without a round trip.
    fn granted(&self, name: &LockName, token: Token, waited: Duration, handed_on: bool) {
        let _ = (name, token, waited, handed_on);
    }

    /// A lock was released.
    fn released(&self, name: &LockName, token: Token) {
        let _ = (name, token);
    }

    /// A grant was lost.
    fn lost(&self, name: &LockName, token: Token, reason: LossReason) {
        let _ = (name, token, reason);
    }

    /// A batch of renewals was answered.
    fn renewed(&self, kept: usize, lost: usize, unknown: usize) {
        let _ = (kept, lost, unknown);
    }
}

/// The observer of a client, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Observed(pub(crate) Option<Arc<dyn Observer>>);

impl Observed {
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_some()
    }

    /// Calls the observer. One that panics must not end the task that renews, or that reports losses.
    pub(crate) fn tell(&self, tell: impl FnOnce(&dyn Observer)) {
        let Some(observer) = &self.0 else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| tell(&**observer))).is_err() {
            tracing::error!("an observer panicked");
        }
    }
}
