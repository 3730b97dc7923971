//! Questions about a history that several rules ask.

use crate::history::{Attempt, History, How};

/// Whether no fault, with its aftermath, overlaps the time from `from` to `to`.
pub(super) fn calm(history: &History, from: u64, to: u64) -> bool {
    let aftermath = history.aftermath;
    let mut faults = history.faults.iter();
    !faults.any(|fault| fault.from <= to && fault.to.saturating_add(aftermath) >= from)
}

/// The attempts for one name with their indices.
pub(super) fn of_name(history: &History, name: u32) -> impl Iterator<Item = (usize, &Attempt)> {
    let all = history.attempts.iter().enumerate();
    all.filter(move |(_, attempt)| attempt.name == name)
}

/// A duration in milliseconds, as text.
pub(crate) fn millis(nanos: u64) -> String {
    format!("{}.{:01} ms", nanos / 1_000_000, nanos / 100_000 % 10)
}

/// Whether a request queues until it is granted.
pub(super) fn waits(how: How) -> bool {
    matches!(how, How::Wait | How::DropGuard | How::Overstay)
}
