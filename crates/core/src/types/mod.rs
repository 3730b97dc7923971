//! Plain values: names, tokens, modes, durations, errors, instants. Nothing here waits or talks to a store.

mod clock;
mod duration;
mod error;
mod loss;
mod mode;
mod name;
mod owner;
mod parse;
#[cfg(feature = "serde")]
mod serialize;
mod token;

pub use clock::{BootInstant, Clock};
pub use duration::in_words;
pub use error::{Cause, ConfigPart, Error, Result};
pub use loss::LossReason;
pub use mode::{Mode, Release};
pub use name::{LockName, MAX_NAME_BYTES};
pub use owner::Owner;
pub(crate) use owner::{MARK, around, check_text};
pub use parse::parse_duration;
pub use token::{ClaimId, ClaimIds, Sequencer, Token, Tokens};
