//! The history of one lock, and what must not happen in it: one token twice, tokens in the wrong order, two holders at once.

/// One hold as its holder saw it, in ns of the boot clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stay {
    pub(crate) token: u64,
    /// When it was requested.
    pub(crate) asked: u64,
    /// When the holder had the grant.
    pub(crate) from: u64,
    /// When the holder last considered it valid.
    pub(crate) to: u64,
}

/// The errors in the history of a name.
pub(crate) fn faults(stays: &[Stay]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut sorted = stays.to_vec();
    sorted.sort_by_key(|stay| stay.token);
    for pair in sorted.windows(2) {
        if pair[0].token == pair[1].token {
            faults.push(format!("one token twice: {pair:?}"));
        }
    }
    let mut first_later: Option<Stay> = None;
    for stay in sorted.iter().rev() {
        if let Some(later) = first_later.filter(|later| later.from < stay.asked) {
            faults.push(format!("tokens against time: {later:?} {stay:?}"));
        }
        if first_later.is_none_or(|later| stay.from < later.from) {
            first_later = Some(*stay);
        }
    }
    sorted.sort_by_key(|stay| stay.from);
    let mut last: Option<Stay> = None;
    for stay in sorted {
        if let Some(last) = last.filter(|last| last.to > stay.from) {
            faults.push(format!("two at once: {last:?} {stay:?}"));
        }
        if last.is_none_or(|last| stay.to > last.to) {
            last = Some(stay);
        }
    }
    faults
}
