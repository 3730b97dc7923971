//! How long knowledge of a record carries.

use std::time::Duration;

/// How long knowledge carries, and the longest lock-delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) pace: Duration,
    pub(crate) tight: Duration,
    pub(crate) lock_delay: Duration,
}
