//! Checks what the holders of one lock saw.

/// A time in which a holder believed that it held a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The holder, for messages.
    pub who: usize,
    /// The fencing token.
    pub token: u64,
    /// Whether the hold is shared.
    pub shared: bool,
    /// Its beginning, in nanoseconds of the boot clock.
    pub from: u64,
    /// Its release, or the end of its validity if that was earlier.
    pub to: u64,
}

/// The violations in a history of one lock: two holders at once, a token twice, tokens in another order than the holds.
#[must_use]
pub fn faults(stays: &[Stay]) -> Vec<String> {
    let mut sorted = stays.to_vec();
    sorted.sort_by_key(|stay| stay.token);
    let mut faults = Vec::new();
    for stay in &sorted {
        if stay.to < stay.from {
            faults.push(format!("left before it came in: {stay:?}"));
        }
    }
    for pair in sorted.windows(2) {
        if pair[0].token == pair[1].token {
            faults.push(format!("one token twice: {:?} and {:?}", pair[0], pair[1]));
        }
    }
    // Of the holds with lower tokens: the latest beginning and the latest end, of exclusive holds and of all.
    let mut last_from: Option<Stay> = None;
    let mut last_to: [Option<Stay>; 2] = [None, None];
    for &stay in &sorted {
        if let Some(other) = last_from.filter(|other| !(other.shared && stay.shared))
            && other.from > stay.from
        {
            faults.push(format!("tokens against time: {other:?} and {stay:?}"));
        }
        // A shared hold must not overlap exclusive ones.
        let other = if stay.shared { last_to[0] } else { last_to[1] };
        if let Some(other) = other
            && other.to > stay.from
            && other.from <= stay.from
        {
            faults.push(format!("two at once: {other:?} and {stay:?}"));
        }
        let later = |other: Option<Stay>| other.is_none_or(|other| stay.to > other.to);
        if !stay.shared && later(last_to[0]) {
            last_to[0] = Some(stay);
        }
        if later(last_to[1]) {
            last_to[1] = Some(stay);
        }
        if last_from.is_none_or(|other| stay.from > other.from) {
            last_from = Some(stay);
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(token: u64, from: u64, to: u64) -> Stay {
        Stay {
            who: token as usize,
            token,
            shared: false,
            from,
            to,
        }
    }

    fn shared(token: u64, from: u64, to: u64) -> Stay {
        let shared = true;
        Stay {
            shared,
            ..stay(token, from, to)
        }
    }

    #[test]
    fn good_histories_pass() {
        assert!(faults(&[]).is_empty());
        let good = [stay(7, 30, 40), stay(1, 0, 10), stay(2, 10, 20)];
        assert!(faults(&good).is_empty());
        let beside = [
            stay(1, 0, 5),
            shared(2, 6, 20),
            shared(3, 7, 9),
            stay(4, 20, 30),
        ];
        assert!(faults(&beside).is_empty());
        // Of two shared holds, the later token may be seen first.
        assert!(faults(&[shared(2, 7, 9), shared(3, 6, 8)]).is_empty());
    }

    #[test]
    fn each_kind_of_fault_is_found() {
        let found = |stays: &[Stay], what: &str| {
            let faults = faults(stays);
            assert!(
                faults.iter().any(|fault| fault.contains(what)),
                "{what}: {faults:?}"
            );
        };
        found(&[stay(1, 0, 10), stay(2, 9, 20)], "two at once");
        found(
            &[stay(1, 0, 100), stay(2, 9, 10), stay(3, 20, 21)],
            "two at once",
        );
        found(&[stay(1, 0, 10), shared(2, 9, 20)], "two at once");
        found(&[shared(1, 0, 10), stay(2, 9, 20)], "two at once");
        found(
            &[shared(1, 0, 30), shared(2, 1, 3), stay(3, 10, 20)],
            "two at once",
        );
        found(&[stay(2, 0, 10), stay(1, 20, 30)], "tokens against time");
        found(&[shared(2, 0, 10), stay(1, 20, 30)], "tokens against time");
        found(&[stay(1, 0, 10), stay(1, 20, 30)], "one token twice");
        found(&[stay(1, 10, 0)], "left before");
    }
}
