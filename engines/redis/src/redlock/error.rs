//! The errors when too few nodes take part.

use crate::redlock::ballot::ACTION;
use fencelock_core::{Clock, Error};

use super::node::{Node, NotVoting};
use super::state::State;

impl State {
    /// The error when fewer nodes than the quorum take part: which do not, and why.
    pub(crate) fn too_few(&self, action: &str, failed: Vec<(usize, Error)>) -> Error {
        self.too_few_besides(action, failed, &[])
    }

    /// Like [`too_few`](Self::too_few), but the nodes `answered` did reply.
    pub(crate) fn too_few_besides(
        &self,
        action: &str,
        mut failed: Vec<(usize, Error)>,
        answered: &[usize],
    ) -> Error {
        let not_a_lock = |(_, error): &(usize, Error)| matches!(error, Error::NotALock { .. });
        if let Some(at) = failed.iter().position(not_a_lock) {
            return failed.swap_remove(at).1;
        }
        let now = Clock::Boot.now();
        let takes_part = |node: &Node| {
            answered.contains(&node.index)
                || action.starts_with(ACTION) && node.voter(now).is_some()
                || action == "connecting" && node.connection().is_some()
        };
        let mut texts = Vec::new();
        let mut refusing = 0;
        for node in &self.nodes {
            let error = failed.iter().find(|(index, _)| *index == node.index);
            let NotVoting { why, refused } = match error {
                Some((_, error)) => NotVoting {
                    why: match error {
                        Error::Unavailable { cause, .. } => cause.to_string(),
                        other => other.to_string(),
                    },
                    refused: matches!(error, Error::Refused { .. }),
                },
                None if takes_part(node) => continue,
                None => node.not_voting(&self.config, now),
            };
            refusing += usize::from(refused);
            texts.push(format!("{}: {why}", node.name));
        }
        let (count, quorum) = (self.nodes.len(), self.config.quorum);
        let cause = match texts.len() {
            // Each answer was good, but the last one that was needed came too late.
            0 => {
                format!("{quorum} of {count} nodes are needed, and they did not all answer in time")
            }
            left_out => format!(
                "{quorum} of {count} nodes are needed, and {left_out} cannot be counted: {}",
                texts.join("; ")
            ),
        };
        // The error is final only if the refusing nodes alone prevent a quorum: nodes that are down or slow may recover.
        if refusing > count - quorum {
            return Error::refused(&self.config.store, action, cause);
        }
        Error::unavailable(&self.config.store, action, cause)
    }
}
