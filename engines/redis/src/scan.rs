//! Finding locks on one server, and pauses between two looks.

use std::collections::BTreeSet;
use std::time::Duration;

use fencelock_core::LockName;
use redis::{Cmd, RedisError, Value};

use crate::reply::{text, unexpected};

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Growing pauses between two looks at a lock.
pub(crate) struct Pauses(Duration);

impl Pauses {
    pub(crate) fn new() -> Self {
        Self(SHORTEST_PAUSE)
    }

    pub(crate) async fn next(&mut self) {
        tokio::time::sleep(self.0.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        self.0 = (self.0 * 3 / 2).min(LONGEST_PAUSE);
    }
}

/// The command for some of the keys that may be locks.
pub(crate) fn scan(prefix: &str, cursor: &str, limit: usize) -> Cmd {
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
