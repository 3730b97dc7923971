//! Messages of other processes, through the database.

use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, ClaimId, Tokens};

/// How long a lock that a releaser granted to the next waiter stays held without a sign of life.
pub const HANDOFF_WINDOW: Duration = Duration::from_secs(2);

/// A message from another process. Only some databases can deliver them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// It may be this waiter's turn.
    Turn(ClaimId),
    /// A releaser granted the lock to this waiter.
    Granted(PushedGrant),
    /// Something happened to a holder.
    Holder(Event),
    /// Messages may have been missed.
    Missed,
}

/// A grant that a releaser made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedGrant {
    /// The claim that was granted the lock.
    pub claim: ClaimId,
    /// The tokens that were drawn for it.
    pub tokens: Tokens,
    /// How long the database keeps it without a sign of life.
    pub window: Duration,
    /// When the request was sent, if the grant is an answer; the window counts from then. `None` if the database pushed it; the
    /// window then counts from when the claim was last placed.
    pub asked_at: Option<BootInstant>,
}
