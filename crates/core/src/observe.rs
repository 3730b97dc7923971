//! What a program may watch: counters and timings for whatever metrics it keeps. Logs go through `tracing`.

use std::fmt::Debug;
use std::time::Duration;

use crate::types::LockName;
use crate::types::{LossReason, Token};

/// Is told what happens to the locks of a client. Every method has an empty default; none may block.
/// A panic of one is logged, and costs nothing else.
pub trait Observer: Debug + Send + Sync + 'static {
    /// A lock was granted after `waited`; `handed_on` within this process, without a round trip.
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
