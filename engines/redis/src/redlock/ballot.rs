//! The votes of the nodes in one attempt: how replies are read and counted.

use std::time::Duration;

use fencelock_core::{Error, LockName};
use redis::{RedisError, Value};

use super::batcher::Replies;
use super::connection::Connection;
use super::node::Node;
use super::round::Tally;
use crate::error::{about, explain};
use crate::reply::unexpected_all;

pub(crate) const ACTION: &str = "taking lock";

#[derive(Debug)]
pub(crate) enum Vote {
    Yes(u64),
    Taken { counter: u64, left: i64 },
    Failed(Error),
}

#[derive(Debug, Default)]
pub(crate) struct Ballot {
    pub(crate) quorum: usize,
    /// How many nodes may vote, and how many of them got the request.
    pub(crate) voters: usize,
    pub(crate) asked: usize,
    /// Nodes, each with its counter.
    pub(crate) yes: Vec<(usize, u64)>,
    pub(crate) taken: Vec<usize>,
    pub(crate) failed: Vec<(usize, Error)>,
    pub(crate) highest: u64,
    pub(crate) left: Option<Duration>,
}

impl Ballot {
    pub(crate) fn count(&mut self, node: usize, vote: Vote) {
        match vote {
            Vote::Yes(counter) => {
                self.highest = self.highest.max(counter);
                self.yes.push((node, counter));
            }
            Vote::Taken { counter, left } => {
                self.highest = self.highest.max(counter);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                self.left = self.left.max(left);
                self.taken.push(node);
            }
            Vote::Failed(error) => self.failed.push((node, error)),
        }
    }

    /// If a quorum voted yes: the lowest token that is at least as high as the counters of a quorum, and whether a quorum
    /// has the same counter.
    pub(crate) fn token(&mut self) -> Option<(u64, bool)> {
        if self.yes.len() < self.quorum {
            return None;
        }
        self.yes.sort_unstable_by_key(|(_, counter)| *counter);
        let mut windows = self.yes.windows(self.quorum);
        let same = windows.find(|some| some[0].1 == some[self.quorum - 1].1);
        match same {
            Some(same) => Some((same[0].1, true)),
            None => Some((self.yes[self.quorum - 1].1, false)),
        }
    }
}

impl Tally for Ballot {
    fn is_enough(&self) -> bool {
        let (yes, against) = (self.yes.len(), self.taken.len() + self.failed.len());
        let most_against = self.voters.saturating_sub(self.quorum);
        yes >= self.quorum || against > most_against || yes + against >= self.asked
    }
}

/// Reads the reply of one node, by script or (`fast`) without.
pub(crate) fn read(
    node: &Node,
    connection: &Connection,
    name: &LockName,
    delay: Duration,
    replies: Result<Replies<'_>, RedisError>,
    fast: bool,
) -> Vote {
    let voter = Voter {
        node,
        connection,
        delay,
    };
    let vote = replies.and_then(|replies| match fast {
        true => voter.read_fast(&replies),
        false => voter.read_script(&replies),
    });
    let failed = |error| Vote::Failed(explain(&node.name, ACTION, Some(name), error));
    vote.unwrap_or_else(failed)
}

/// Whose reply is read.
struct Voter<'a> {
    node: &'a Node,
    connection: &'a Connection,
    /// For how long it does not vote if its clock was set.
    delay: Duration,
}

impl Voter<'_> {
    fn read_fast(&self, replies: &Replies<'_>) -> Result<Vote, RedisError> {
        let [set, drawn] = &*replies.values else {
            return Err(unexpected_all(replies.values));
        };
        for answer in [set, drawn] {
            if let Value::ServerError(error) = answer {
                return Err(error.clone().into());
            }
        }
        let (Value::Int(counter), Some(micros)) = (drawn, replies.micros) else {
            return Err(unexpected_all(replies.values));
        };
        let counted = self.check(replies, micros, *counter);
        Ok(counted.map_or_else(
            |void| void,
            |counter| match set {
                Value::Okay => Vote::Yes(counter),
                _ => Vote::Taken { counter, left: -1 },
            },
        ))
    }

    fn read_script(&self, replies: &Replies<'_>) -> Result<Vote, RedisError> {
        let parts = match &*replies.values {
            [Value::Array(parts)] => parts,
            [Value::ServerError(error)] => return Err(error.clone().into()),
            other => return Err(unexpected_all(other)),
        };
        let [
            Value::BulkString(word),
            Value::Int(counter),
            Value::Int(micros),
            Value::Int(left),
        ] = &parts[..]
        else {
            return Err(unexpected_all(parts));
        };
        if &word[..] == b"late" {
            self.check_clock(replies, *micros);
            return Ok(self.void("the request reached it too late"));
        }
        let counted = self.check(replies, *micros, *counter);
        Ok(counted.map_or_else(
            |void| void,
            |counter| match &word[..] {
                b"ok" => Vote::Yes(counter),
                _ => Vote::Taken {
                    counter,
                    left: *left,
                },
            },
        ))
    }

    /// The counter, if the reply counts as a vote.
    fn check(&self, replies: &Replies<'_>, micros: i64, counter: i64) -> Result<u64, Vote> {
        if !self.check_clock(replies, micros) {
            return Err(self.void("its clock was set a moment ago"));
        }
        let counter = u64::try_from(counter).unwrap_or(0);
        if counter < self.connection.floor() {
            // The node was emptied, although its connection did not break.
            tracing::warn!(node = %self.node.name, "the node has lost its memory");
            self.connection.break_off();
            return Err(self.void("it has lost its memory"));
        }
        Ok(counter)
    }

    fn check_clock(&self, replies: &Replies<'_>, micros: i64) -> bool {
        let Replies { asked, heard, .. } = *replies;
        self.node.check_clock(self.delay, micros, asked, heard)
    }

    fn void(&self, why: &str) -> Vote {
        Vote::Failed(Error::unavailable(
            &self.node.name,
            about(ACTION, None),
            why,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Ballot;

    #[test]
    fn a_quorum_with_the_same_counter_needs_no_second_round() {
        let of = |counters: &[u64], quorum| {
            let mut ballot = Ballot {
                quorum,
                yes: counters.iter().copied().enumerate().collect(),
                ..Ballot::default()
            };
            ballot.token()
        };
        assert_eq!(of(&[7, 7], 3), None);
        assert_eq!(of(&[7, 7, 7], 3), Some((7, true)));
        assert_eq!(of(&[7, 9, 7], 3), Some((9, false)));
        assert_eq!(of(&[7, 9, 8, 7], 3), Some((8, false)));
        assert_eq!(of(&[1, 7, 9, 7, 7], 3), Some((7, true)));
    }
}
