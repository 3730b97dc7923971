//! Modes as words.

use std::num::NonZeroU32;

use fencelock_core::Mode;
use serde::{Deserialize, Serialize};

/// A mode as a word. The number of permits is a separate member (`permit_count`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ModeWord {
    /// One holder alone.
    #[default]
    Exclusive,
    /// Any number of shared holders together.
    Shared,
    /// At most `permit_count` holders together.
    Permit,
}

impl ModeWord {
    /// The word and the count of a mode.
    #[must_use]
    pub const fn of(mode: Mode) -> (Self, Option<NonZeroU32>) {
        match mode {
            Mode::Exclusive => (Self::Exclusive, None),
            Mode::Shared => (Self::Shared, None),
            Mode::Permit { of } => (Self::Permit, Some(of)),
        }
    }

    /// The mode, given its count.
    ///
    /// # Errors
    /// If the count is missing, or if the mode has no count.
    pub const fn mode(self, permit_count: Option<NonZeroU32>) -> Result<Mode, &'static str> {
        match (self, permit_count) {
            (Self::Exclusive, None) => Ok(Mode::Exclusive),
            (Self::Shared, None) => Ok(Mode::Shared),
            (Self::Permit, Some(of)) => Ok(Mode::Permit { of }),
            (Self::Permit, None) => {
                Err("mode permit needs permit_count, how many permits there are")
            }
            (_, Some(_)) => Err("permit_count goes with mode permit only"),
        }
    }
}
