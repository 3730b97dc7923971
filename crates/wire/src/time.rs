//! Durations as whole milliseconds.

use std::time::Duration;

/// As whole milliseconds, rounded down: for the time that a client may believe.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// As whole milliseconds, rounded up: for a time that a client requests.
#[must_use]
pub fn millis_up(duration: Duration) -> u64 {
    let more = !duration.subsec_nanos().is_multiple_of(1_000_000);
    millis(duration).saturating_add(u64::from(more))
}
