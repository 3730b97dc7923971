//! Looking at locks without touching them.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencelock_core::engine::{Cursor, LockView, Page};
use fencelock_core::{LockName, Result, Token};
use futures_util::stream::{self, StreamExt};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::connection::unexpected;
use crate::engine::Redis;
use crate::error::{explain, unreadable};
use crate::hub::Terms;
use crate::keys::Keys;
use crate::stored::{Hold, Stored, foreign_view, waiter_view};

/// The pauses between two looks of one who waits for a change.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How many waiters are shown: as many as by `look.lua`.
const MOST_WAITERS: isize = 1000;

/// A lock as the server has it.
struct Seen {
    /// The server's time in ms.
    now: u64,
    value: Option<Vec<u8>>,
    left: Option<Duration>,
    /// Of each reader its claim, its expiry in ms, and what is stored.
    readers: Vec<(String, u64, String)>,
    /// What is stored of each waiter, in order.
    waiters: Vec<String>,
}

impl Seen {
    /// From the answer of `look.lua`.
    fn new(answer: Value) -> Result<Self, RedisError> {
        let refuse = |answer: &Value| Err(unexpected(answer));
        let Value::Array(parts) = answer else {
            return refuse(&answer);
        };
        let parts: Result<[Value; 5], _> = parts.try_into();
        match parts {
            Ok(
                [
                    Value::Int(now),
                    value,
                    Value::Int(left),
                    Value::Array(readers),
                    Value::Array(waiters),
                ],
            ) => Ok(Self {
                now: u64::try_from(now).unwrap_or(0),
                value: bytes(value),
                left: remaining(left),
                readers: readers.chunks_exact(3).map(reader).collect(),
                waiters: waiters.iter().map(text).collect(),
            }),
            Ok(parts) => refuse(&Value::Array(parts.to_vec())),
            Err(parts) => refuse(&Value::Array(parts)),
        }
    }

    /// Whether a newer version stored it, or it is damaged.
    fn is_unreadable(&self) -> bool {
        let value = self.value.as_deref();
        value.is_some_and(|value| Stored::parse(value) == Stored::Unreadable)
    }

    /// The lock; `None` if what stands there is not ours, unless others' are wanted, too.
    fn view(self, name: &LockName, foreigners: bool) -> Option<LockView> {
        let mut view = LockView::free(name.clone());
        if let Some(value) = &self.value {
            match Stored::parse(value) {
                Stored::Alone(hold) => {
                    let hold = hold.view(fencelock_core::Mode::Exclusive, self.left, self.now);
                    view.holders.push(hold);
                }
                Stored::Readers(mode) => {
                    for (claim, expiry, stored) in &self.readers {
                        let Some(left) = expiry.checked_sub(self.now).filter(|left| *left > 0)
                        else {
                            continue;
                        };
                        if let Some(hold) = Hold::parse_reader(claim, stored) {
                            let left = Some(Duration::from_millis(left));
                            view.holders.push(hold.view(mode, left, self.now));
                        }
                    }
                }
                Stored::Foreign if foreigners => {
                    view.holders.push(foreign_view(value, self.left));
                }
                Stored::Foreign | Stored::Unreadable => return None,
            }
        }
        let waiters = self.waiters.iter();
        view.waiters
            .extend(waiters.filter_map(|waiter| waiter_view(waiter)));
        Some(view)
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// What `PTTL` says.
fn remaining(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}

/// One of the triples that `look.lua` answers with.
fn reader(parts: &[Value]) -> (String, u64, String) {
    let part = |at: usize| parts.get(at).map(text).unwrap_or_default();
    (part(0), part(1).parse().unwrap_or(0), part(2))
}

pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

impl Redis {
    async fn see(&self, name: &LockName) -> Result<Seen> {
        let hub = self.hub();
        let keys = hub.keys(name);
        let action = "looking at a lock";
        if hub.config.inspect_only {
            return self.see_without_script(action, &keys).await;
        }
        let args = |command: &mut Cmd, _: &Terms| keys.push_without_counter(command);
        let (answer, ..) = hub.run(action, &keys, &hub.scripts.look, args).await?;
        Seen::new(answer).map_err(|error| explain(hub.store(), action, Some(name), error))
    }

    /// By reads alone: whoever may only look need not be allowed scripts, which may write.
    async fn see_without_script(&self, action: &str, keys: &Keys<'_>) -> Result<Seen> {
        let hub = self.hub();
        let name = keys.name.as_str();
        let failed = |error: RedisError| explain(hub.store(), action, Some(keys.name), error);
        let mut lock = Pipeline::with_capacity(4);
        lock.cmd("TIME");
        lock.cmd("GET").arg(name);
        lock.cmd("PTTL").arg(name);
        lock.cmd("ZRANGE")
            .arg(keys.line())
            .arg(0)
            .arg(MOST_WAITERS - 1);
        let answers = hub.ask(action, keys, &lock).await?;
        let ((seconds, micros), value, left, line): (
            (u64, u64),
            Option<Vec<u8>>,
            i64,
            Vec<String>,
        ) = redis::from_redis_value(Value::Array(answers)).map_err(|error| failed(error.into()))?;
        let mut seen = Seen {
            now: seconds * 1000 + micros / 1000,
            value,
            left: remaining(left),
            readers: Vec::new(),
            waiters: Vec::new(),
        };
        if seen
            .value
            .as_deref()
            .is_some_and(|value| value.starts_with(b"fl1:*:"))
        {
            let mut readers = Pipeline::with_capacity(2);
            let all = readers.cmd("ZRANGE").arg(keys.beside("readers"));
            all.arg(0).arg(-1).arg("WITHSCORES");
            readers.cmd("HGETALL").arg(keys.beside("readers:who"));
            let answers = hub.ask(action, keys, &readers).await?;
            let (expiries, mut stored): (Vec<(String, f64)>, HashMap<String, String>) =
                redis::from_redis_value(Value::Array(answers))
                    .map_err(|error| failed(error.into()))?;
            seen.readers
                .extend(expiries.into_iter().map(|(claim, expiry)| {
                    let stored = stored.remove(&claim).unwrap_or_default();
                    (claim, expiry as u64, stored)
                }));
        }
        if !line.is_empty() {
            let mut waiters = Pipeline::with_capacity(1);
            waiters.cmd("HMGET").arg(keys.beside("who")).arg(&line);
            let answers = hub.ask(action, keys, &waiters).await?;
            if let Some(Value::Array(waiters)) = answers.first() {
                seen.waiters.extend(waiters.iter().map(text));
            }
        }
        Ok(seen)
    }

    pub(crate) async fn look_until(
        &self,
        name: &LockName,
        unlike: Option<Option<Token>>,
    ) -> Result<LockView> {
        let mut pauses = Pauses::new();
        loop {
            let seen = self.see(name).await?;
            if seen.is_unreadable() {
                return Err(unreadable(self.hub().store(), name));
            }
            let view = seen.view(name, true);
            let view = view.unwrap_or_else(|| LockView::free(name.clone()));
            if unlike.is_none_or(|token| view.token() != token) {
                return Ok(view);
            }
            pauses.next().await;
        }
    }

    pub(crate) async fn list_part(
        &self,
        prefix: &str,
        at: Option<Cursor>,
        limit: usize,
    ) -> Result<Page<LockView>> {
        let hub = self.hub();
        // In a cluster one node after the other: the cursor says which, and where it stands there.
        let at = at.and_then(|at| {
            let (node, cursor) = at.0.split_once(':')?;
            Some((node.parse::<usize>().ok()?, cursor.to_owned()))
        });
        let (index, cursor) = at.unwrap_or_else(|| (0, "0".to_owned()));
        let nodes = hub.nodes();
        let Some(node) = nodes.get(index) else {
            return Ok(Page {
                items: Vec::new(),
                next: None,
            });
        };
        let link = node.link(hub).await?;
        let failed = |error| explain(hub.store(), "listing locks", None, error);
        let answer = link.send(&scan(prefix, &cursor, limit)).await;
        let (next, names) = answer.and_then(|answer| scanned(&answer)).map_err(failed)?;
        let seen = names.into_iter().map(|name| async move {
            let seen = self.see(&name).await;
            seen.map(|seen| seen.view(&name, false))
        });
        let mut seen = stream::iter(seen).buffered(64);
        let mut items = Vec::new();
        while let Some(view) = seen.next().await {
            match view {
                Ok(view) => items.extend(view.filter(|view| !view.holders.is_empty())),
                // The key became another thing since the scan.
                Err(fencelock_core::Error::NotALock { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let next = match (next == "0", index + 1 < nodes.len()) {
            (false, _) => Some(Cursor(format!("{index}:{next}"))),
            (true, true) => Some(Cursor(format!("{}:0", index + 1))),
            (true, false) => None,
        };
        Ok(Page { items, next })
    }
}

/// The pauses of one who waits for a change, each a little longer than the one before.
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

/// Asks one server for some of the keys that may be locks.
pub(crate) fn scan(prefix: &str, cursor: &str, limit: usize) -> Cmd {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor);
    scan.arg("MATCH").arg(pattern(prefix));
    scan.arg("COUNT").arg(limit.clamp(10, 1000));
    scan.arg("TYPE").arg("string");
    scan
}

/// What came of it: the next cursor, and the names. A scan may meet a key twice.
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
    Ok((text(next), names))
}

/// A pattern for all keys that begin with a text.
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
