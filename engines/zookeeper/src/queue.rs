//! The line at a lock: its children in the order of their sequence numbers, and whose turn it is.

use std::num::NonZeroU32;

use fencelock_core::Mode;

use crate::names;

/// One child of a lock's node that stands in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedNode {
    /// Its node's name.
    pub(crate) node: String,
    /// How it wants to hold.
    pub(crate) mode: Mode,
    sequence: i64,
}

/// The line, first come first.
#[derive(Debug, Default)]
pub(crate) struct Queue(pub(crate) Vec<QueuedNode>);

/// Whether a claim holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It does.
    Held,
    /// Not before one of these (places in the line) has gone.
    WaitsFor(Vec<usize>),
}

impl Queue {
    /// Sorts the children of a lock. Whatever has a sequence number stands in line, alone unless its name says
    /// otherwise; what has none is no lock's.
    pub(crate) fn new(children: Vec<String>) -> Result<Self, String> {
        let mut queue = Vec::with_capacity(children.len());
        for node in children {
            let Some((before, number)) = names::split(&node) else {
                continue;
            };
            let Ok(sequence) = number.parse() else {
                continue;
            };
            let mode = names::mode(before)?;
            queue.push(QueuedNode {
                node,
                mode,
                sequence,
            });
        }
        // Numbers of 32 bits wrap round; those in one line lie close together.
        let first = queue
            .first()
            .map_or(0, |queued: &QueuedNode| queued.sequence);
        queue.sort_by_key(|queued| queued.sequence.wrapping_sub(first) as i32);
        Ok(Self(queue))
    }

    /// The place of a node.
    pub(crate) fn find(&self, node: &str) -> Option<usize> {
        self.0.iter().position(|queued| queued.node == node)
    }

    /// How many hold: they are the first.
    pub(crate) fn holding(&self) -> usize {
        let held = (0..self.0.len()).take_while(|at| self.turn(*at) == Turn::Held);
        held.count()
    }

    /// Whether one who came last would hold.
    pub(crate) fn admits(&mut self, mode: Mode) -> bool {
        let last = QueuedNode {
            node: String::new(),
            mode,
            sequence: 0,
        };
        self.0.push(last);
        let held = self.turn(self.0.len() - 1) == Turn::Held;
        self.0.pop();
        held
    }

    /// Whether the one at this place holds, given that the line before it only ever gets shorter.
    pub(crate) fn turn(&self, at: usize) -> Turn {
        let ahead = &self.0[..at];
        let last_unlike =
            |like: fn(Mode) -> bool| ahead.iter().rposition(|other| !like(other.mode));
        let last = match self.0[at].mode {
            Mode::Exclusive => at.checked_sub(1),
            Mode::Shared => last_unlike(|mode| mode == Mode::Shared),
            Mode::Permit { of } => {
                let unlike = last_unlike(|mode| matches!(mode, Mode::Permit { .. }));
                if unlike.is_none() {
                    return permit_turn(ahead, of);
                }
                unlike
            }
        };
        last.map_or(Turn::Held, |last| Turn::WaitsFor(vec![last]))
    }
}

/// Behind permits only.
fn permit_turn(ahead: &[QueuedNode], of: NonZeroU32) -> Turn {
    let total = |queued: &QueuedNode| match queued.mode {
        Mode::Permit { of } => of.get() as usize,
        _ => 1,
    };
    let of = of.get() as usize;
    // Nobody passes one who waits: totals that differ are a mistake, and must not break the smaller one.
    let waits = |(at, queued): (usize, &QueuedNode)| at >= total(queued);
    if ahead.len() < of && !ahead.iter().enumerate().any(waits) {
        return Turn::Held;
    }
    let alike = ahead.iter().all(|queued| total(queued) == of);
    // As long as none of these `of` has gone, so many hold.
    let watched = if alike {
        of.min(ahead.len())
    } else {
        ahead.len()
    };
    Turn::WaitsFor((ahead.len() - watched..ahead.len()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    fn queue(nodes: &[&str]) -> Queue {
        Queue::new(nodes.iter().map(|node| node.replace('@', ID)).collect()).unwrap()
    }

    #[test]
    fn each_library_is_understood() {
        let queue = queue(&[
            "_c_@-lock-0000000007",
            "_c_5a2c8a2e-5a0c-4c6e-8d0c-0d6f0a1b2c3d-lock-0000000003",
            "abcdef__lock__0000000005",
            "abcdef__rlock__0000000001",
            "_c_5a2c8a2e-5a0c-4c6e-8d0c-0d6f0a1b2c3d-__READ__0000000002",
            "_c_@-shared-lock-0000000004",
            "_c_@-permit3-lock-0000000006",
            "no-lock",
            "short-123",
        ]);
        let modes: Vec<_> = queue.0.iter().map(|queued| queued.mode.letter()).collect();
        assert_eq!(modes, ['s', 's', 'x', 's', 'x', 'p', 'x']);
        assert_eq!(queue.holding(), 2);
        let newer = Queue::new(vec![format!("_c_{ID}-intent-lock-0000000001")]);
        assert_eq!(newer.unwrap_err(), "intent");
    }

    #[test]
    fn one_watches_the_one_before_and_readers_the_last_writer() {
        let queue = queue(&[
            "_c_@-lock-0000000001",
            "_c_@-lock-0000000002",
            "_c_@-shared-lock-0000000003",
            "_c_@-shared-lock-0000000004",
            "_c_@-lock-0000000005",
        ]);
        let turns: Vec<_> = (0..5).map(|at| queue.turn(at)).collect();
        let waits_for = |at| Turn::WaitsFor(vec![at]);
        assert_eq!(
            turns,
            [
                Turn::Held,
                waits_for(0),
                waits_for(1),
                waits_for(1),
                waits_for(3)
            ]
        );
    }

    #[test]
    fn permits_watch_as_many_as_hold() {
        let permits = |of: &[u32]| {
            let nodes: Vec<_> = of
                .iter()
                .enumerate()
                .map(|(at, of)| format!("_c_{ID}-permit{of}-lock-{at:010}"))
                .collect();
            Queue::new(nodes).unwrap()
        };
        let queue = permits(&[2, 2, 2, 2]);
        assert_eq!(queue.holding(), 2);
        assert_eq!(queue.turn(2), Turn::WaitsFor(vec![0, 1]));
        assert_eq!(queue.turn(3), Turn::WaitsFor(vec![1, 2]));
        let odd = permits(&[3, 1, 3]);
        assert_eq!(
            odd.holding(),
            1,
            "nobody passes the second, who wants to be alone"
        );
        assert_eq!(odd.turn(2), Turn::WaitsFor(vec![0, 1]));
    }

    #[test]
    fn numbers_wrap_round() {
        let queue = queue(&[
            "_c_@-lock--2147483648",
            "_c_@-lock-2147483647",
            "x__lock__-2147483647",
        ]);
        let numbers: Vec<_> = queue.0.iter().map(|queued| queued.sequence).collect();
        assert_eq!(numbers, [2_147_483_647, -2_147_483_648, -2_147_483_647]);
    }
}
