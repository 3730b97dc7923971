//! The queue of a lock: the children of its node in the order of their numbers, and which of their claims hold.

use fencelock_core::Mode;
use fencelock_core::support::admission;

use crate::names;

/// A child of a lock's node that is in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueuedNode {
    pub(crate) node: String,
    /// The mode in which its claim wants to hold.
    pub(crate) mode: Mode,
    number: i64,
}

/// The queue, oldest node first.
#[derive(Debug, Default)]
pub(crate) struct Queue(pub(crate) Vec<QueuedNode>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Held,
    /// It cannot hold before the node at one of these positions is gone.
    WaitsFor(Vec<usize>),
}

impl Queue {
    /// Sorts the children of a lock's node. Every child with a number is in the queue. Its mode is exclusive unless its name
    /// has another one. `Err` with the word of a mode that only a newer version knows.
    pub(crate) fn new(children: Vec<String>) -> Result<Self, String> {
        let mut queue = Vec::with_capacity(children.len());
        for node in children {
            let Some((before, number)) = names::split_number(&node) else {
                continue;
            };
            let Ok(number) = number.parse() else {
                continue;
            };
            let mode = names::mode(before)?;
            queue.push(QueuedNode { node, mode, number });
        }
        // The numbers have 32 bits and wrap around. Those in one queue are close together.
        let first = queue.first().map_or(0, |queued: &QueuedNode| queued.number);
        queue.sort_by_key(|queued| queued.number.wrapping_sub(first) as i32);
        Ok(Self(queue))
    }

    pub(crate) fn find(&self, node: &str) -> Option<usize> {
        self.0.iter().position(|queued| queued.node == node)
    }

    /// How many nodes hold. They are the first ones.
    pub(crate) fn holding(&self) -> usize {
        let held = (0..self.0.len()).take_while(|at| self.turn(*at) == Turn::Held);
        held.count()
    }

    /// Whether a new claim at the end would hold.
    pub(crate) fn admits(&self, mode: Mode) -> bool {
        admission::admits(mode, modes(&self.0))
    }

    /// Whether the node at this position holds. The queue ahead of it can only get shorter.
    pub(crate) fn turn(&self, at: usize) -> Turn {
        let (mode, ahead) = (self.0[at].mode, &self.0[..at]);
        if admission::admits(mode, modes(ahead)) {
            return Turn::Held;
        }
        let excludes = |other: &QueuedNode| !admission::admits(mode, [other.mode]);
        let waits_for = match (ahead.iter().rposition(excludes), mode) {
            (Some(last), _) => last..last + 1,
            // All nodes ahead are permits of this semaphore. While the last `of` of them exist, the semaphore is full.
            (None, Mode::Permit { of }) => at - of.get() as usize..at,
            (None, _) => 0..at,
        };
        Turn::WaitsFor(waits_for.collect())
    }
}

fn modes(nodes: &[QueuedNode]) -> impl Iterator<Item = Mode> {
    nodes.iter().map(|node| node.mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "000102030405060708090a0b0c0d0e0f";

    fn queue(nodes: &[&str]) -> Queue {
        Queue::new(nodes.iter().map(|node| node.replace('@', ID)).collect()).unwrap()
    }

    #[test]
    fn nodes_of_each_library_are_understood() {
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
    fn a_claim_watches_its_predecessor_and_a_reader_the_last_writer() {
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
            "no permit passes the second, of another semaphore"
        );
        assert_eq!(odd.turn(2), Turn::WaitsFor(vec![1]));
        assert_eq!(permits(&[3, 5]).holding(), 1);
    }

    #[test]
    fn a_claim_does_not_hold_while_the_nodes_that_it_waits_for_exist() {
        for (mode, ahead) in admission::small_inputs() {
            let at = ahead.len();
            let modes = ahead.iter().chain([&mode]);
            let queue = Queue(
                modes
                    .map(|mode| QueuedNode {
                        node: String::new(),
                        mode: *mode,
                        number: 0,
                    })
                    .collect(),
            );
            if let Turn::WaitsFor(nodes) = queue.turn(at) {
                let left = nodes.iter().map(|at| ahead[*at]);
                assert!(!admission::admits(mode, left), "{mode:?} behind {ahead:?}");
            }
        }
    }

    #[test]
    fn numbers_wrap_around() {
        let queue = queue(&[
            "_c_@-lock--2147483648",
            "_c_@-lock-2147483647",
            "x__lock__-2147483647",
        ]);
        let numbers: Vec<_> = queue.0.iter().map(|queued| queued.number).collect();
        assert_eq!(numbers, [2_147_483_647, -2_147_483_648, -2_147_483_647]);
    }
}
