//! Finding locks on one server.

use std::collections::BTreeSet;

use fencelock_core::engine::LockView;
use fencelock_core::{Error, LockName, Result};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, RedisError, Value};

use crate::reply::{text, unexpected};

/// The command that returns some of the keys that may be locks.
pub(crate) fn scan(prefix: &str, cursor: u64, limit: usize) -> Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor);
    scan.arg("MATCH").arg(pattern(prefix));
    scan.arg("COUNT").arg(limit.clamp(10, 1000));
    scan.arg("TYPE").arg("string");
    scan
}

/// Its reply: the next cursor, and the names, each once.
pub(crate) fn scanned(answer: &Value) -> Result<(String, BTreeSet<LockName>), RedisError> {
    let Value::Array(parts) = answer else {
        return Err(unexpected(answer));
    };
    let [next, Value::Array(keys)] = parts.as_slice() else {
        return Err(unexpected(answer));
    };
    let names = keys
        .iter()
        .filter_map(|key| match key {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
        .filter_map(|name| LockName::new(name).ok())
        .collect();
    Ok((text(next).unwrap_or_default(), names))
}

/// The held locks among those that these futures read.
pub(crate) async fn held<L>(looks: impl Iterator<Item = L> + Send) -> Result<Vec<LockView>>
where
    L: Future<Output = Result<Option<LockView>>> + Send,
{
    let mut looks = stream::iter(looks).buffered(64);
    let mut views = Vec::new();
    while let Some(view) = looks.next().await {
        match view {
            Ok(view) => views.extend(view.filter(|view| !view.holders.is_empty())),
            // The key got another type since the scan.
            Err(Error::NotALock { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(views)
}

/// The pattern for all keys with a prefix.
fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 8);
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_taken_literally() {
        assert_eq!(pattern("a*b[c]"), "a\\*b\\[c\\]*");
        assert_eq!(pattern(""), "*");
    }
}
