//! What other processes say through the database.

use std::time::Duration;

use fencelock_core::engine::Event;
use fencelock_core::{BootInstant, ClaimId, Tokens};

/// How long a lock that a releaser granted to the next waiter stays taken without a sign of life.
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
    /// Whose it is.
    pub claim: ClaimId,
    /// The tokens that were drawn for it.
    pub tokens: Tokens,
    /// How long the database keeps it without a sign of life.
    pub window: Duration,
    /// When the client asked, if this is the answer to a question: the window counts from then. `None` if the database sent
    /// it: the window counts from when the claim was last placed.
    pub asked_at: Option<BootInstant>,
}
