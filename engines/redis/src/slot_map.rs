//! The nodes of a cluster and their slots, according to one node. Also addresses in replies.

use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::config::Address;
use crate::reply::text;

/// The slots according to one node.
pub(crate) struct SlotMap {
    pub(crate) epoch: u64,
    /// First slot, last slot, and the master that has them.
    pub(crate) ranges: Vec<(u16, u16, Address)>,
}

/// The requests to a node.
pub(crate) fn questions() -> Pipeline {
    let mut questions = Pipeline::with_capacity(2);
    questions.cmd("CLUSTER").arg("INFO");
    questions.cmd("CLUSTER").arg("SLOTS");
    questions
}

impl SlotMap {
    /// Reads the replies to [`questions`] by the node at `host:port`.
    pub(crate) fn read(
        answers: Result<Vec<Value>, RedisError>,
        asked: &str,
    ) -> Result<Self, RedisError> {
        let answers = answers?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(error.clone().into());
            }
        }
        let unreadable = || {
            RedisError::from((
                ErrorKind::UnexpectedReturnType,
                "CLUSTER SLOTS is unreadable",
            ))
        };
        let [info, Value::Array(slots)] = &answers[..] else {
            return Err(unreadable());
        };
        let info = text(info).unwrap_or_default();
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        let epoch = lines.find(|(key, _)| *key == "cluster_current_epoch");
        let epoch = epoch.and_then(|(_, epoch)| epoch.trim().parse().ok());
        let ranges: Option<Vec<_>> = slots.iter().map(|slots| range(slots, asked)).collect();
        Ok(Self {
            epoch: epoch.unwrap_or(0),
            ranges: ranges.ok_or_else(unreadable)?,
        })
    }
}

fn range(value: &Value, asked: &str) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &parts[..]
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &master[..] else {
        return None;
    };
    // A node that does not know its own address returns nothing, or `?`.
    let host = match text(host).filter(|host| !host.is_empty() && host != "?") {
        Some(host) => host,
        None => split(asked)?.0,
    };
    let number = |number: &i64| u16::try_from(*number).ok();
    Some((number(first)?, number(last)?, (host, number(port)?)))
}

fn split(address: &str) -> Option<Address> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

/// Whether an error means that the request had no effect because the lock is, or will be, at another node.
pub(crate) fn is_redirection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
        )
    )
}

/// Where a slot now is, if the error says that.
pub(crate) fn moved_to(error: &RedisError) -> Option<Address> {
    redirected(error, ServerErrorKind::Moved)
}

/// Where a key of a slot that is being moved may already be, if the error says that.
pub(crate) fn ask_at(error: &RedisError) -> Option<Address> {
    redirected(error, ServerErrorKind::Ask)
}

fn redirected(error: &RedisError, kind: ServerErrorKind) -> Option<Address> {
    if error.kind() != ErrorKind::Server(kind) {
        return None;
    }
    split(error.redirect_node()?.0)
}
