use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_core::engine::{Cursor, Evict, Finding, Inspect, LockView, Page};
use fencelock_core::{LockName, Mode, Result, Token};
use redis::{Cmd, Pipeline, RedisError, Value};

use crate::diagnose::findings;
use crate::error::unreadable;
use crate::keys::Keys;
use crate::release::evict;
use crate::reply::{text, unexpected};
use crate::scan::{held, scan, scanned};
use crate::servers::{GrantRules, Servers};
use crate::stored::{Hold, Stored, foreign_view, waiter_view};

const ACTION: &str = "looking at lock";

/// A lock as the server has it.
struct Seen {
    /// The server's time in ms.
    now: u64,
    value: Option<Vec<u8>>,
    left: Option<Duration>,
    /// For each shared holder: its claim, its expiry in ms, and the stored text.
    shared: Vec<(String, u64, String)>,
    /// The stored text of each waiter, in order.
    waiters: Vec<String>,
}

impl Seen {
    /// From the reply of `look.lua`.
    fn read(answer: Value) -> Result<Self, RedisError> {
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
                    Value::Array(shared),
                    Value::Array(waiters),
                ],
            ) => Ok(Self {
                now: u64::try_from(now).unwrap_or(0),
                value: match value {
                    Value::BulkString(bytes) => Some(bytes),
                    _ => None,
                },
                left: remaining(left),
                shared: shared.chunks_exact(3).map(shared_holder).collect(),
                waiters: waiters.iter().filter_map(text).collect(),
            }),
            Ok(parts) => refuse(&Value::Array(parts.to_vec())),
            Err(parts) => refuse(&Value::Array(parts)),
        }
    }

    /// Whether a newer version of fencelock stored the lock, or the value is damaged.
    fn is_unreadable(&self) -> bool {
        let value = self.value.as_deref();
        value.is_some_and(|value| Stored::parse(value) == Stored::Unreadable)
    }

    /// Whether clients of this library wait for it. Any string may be the lock of another library, but this one certainly is.
    fn is_waited_for(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// The lock; `None` if the value cannot be read, or is that of another client and `foreign` is `false`.
    fn view(self, name: &LockName, foreign: bool) -> Option<LockView> {
        let mut view = LockView::free(name.clone());
        match self.value.as_deref().map(Stored::parse) {
            None => {}
            Some(Stored::Exclusive(hold)) => {
                let holder = hold.view(Mode::Exclusive, self.left, self.now);
                view.holders.push(holder);
            }
            Some(Stored::Shared(mode)) => {
                let holders = self.shared.iter().filter_map(|(claim, expiry, stored)| {
                    let left = expiry.checked_sub(self.now).filter(|left| *left > 0)?;
                    let left = Some(Duration::from_millis(left));
                    let hold = Hold::parse_shared(claim, stored)?;
                    Some(hold.view(mode, left, self.now))
                });
                view.holders.extend(holders);
            }
            Some(Stored::Foreign) if foreign => {
                let value = self.value.as_deref().unwrap_or_default();
                view.holders.push(foreign_view(value, self.left));
            }
            Some(Stored::Foreign | Stored::Unreadable) => return None,
        }
        let waiters = self.waiters.iter();
        view.waiters
            .extend(waiters.filter_map(|waiter| waiter_view(waiter)));
        Some(view)
    }
}

/// The remaining time, from the answer of `PTTL`.
fn remaining(left: i64) -> Option<Duration> {
    u64::try_from(left).ok().map(Duration::from_millis)
}

/// One of the triples that `look.lua` returns.
fn shared_holder(parts: &[Value]) -> (String, u64, String) {
    let part = |at: usize| parts.get(at).and_then(text).unwrap_or_default();
    (part(0), part(1).parse().unwrap_or(0), part(2))
}

async fn see(servers: &Servers, name: &LockName) -> Result<Seen> {
    let state = &servers.state;
    let keys = state.keys(name);
    if state.config.inspect_only {
        return see_without_script(servers, &keys).await;
    }
    let args = |command: &mut Cmd, _: &GrantRules| keys.push_without_counter(command);
    let (answer, ..) = servers
        .run(ACTION, &keys, &state.scripts.look, args)
        .await?;
    Seen::read(answer).map_err(|error| state.failed(ACTION, Some(name), error))
}

/// Uses read commands only, so that a user for inspection needs no right to run scripts, which may write.
async fn see_without_script(servers: &Servers, keys: &Keys<'_>) -> Result<Seen> {
    type Lock = ((u64, u64), Option<Vec<u8>>, i64, Vec<String>);
    let name = keys.name.as_str();
    let failed = |error: redis::ParsingError| {
        servers
            .state
            .failed(ACTION, Some(keys.name), RedisError::from(error))
    };
    let mut lock = Pipeline::with_capacity(4);
    lock.cmd("TIME");
    lock.cmd("GET").arg(name);
    lock.cmd("PTTL").arg(name);
    lock.cmd("ZRANGE")
        .arg(keys.queue())
        .arg(0)
        .arg(LockView::MOST_WAITERS - 1);
    let answers = servers.ask(ACTION, keys, &lock).await?;
    let lock: Lock = redis::from_redis_value(Value::Array(answers)).map_err(failed)?;
    let ((seconds, micros), value, left, queue) = lock;
    let mut seen = Seen {
        now: seconds * 1000 + micros / 1000,
        value,
        left: remaining(left),
        shared: Vec::new(),
        waiters: Vec::new(),
    };
    let value = seen.value.as_deref();
    if value.is_some_and(|value| value.starts_with(b"fl1:*:")) {
        let mut holders = Pipeline::with_capacity(2);
        let all = holders.cmd("ZRANGE").arg(keys.beside("readers"));
        all.arg(0).arg(-1).arg("WITHSCORES");
        holders.cmd("HGETALL").arg(keys.beside("readers:who"));
        let answers = servers.ask(ACTION, keys, &holders).await?;
        let (expiries, mut stored): (Vec<(String, f64)>, HashMap<String, String>) =
            redis::from_redis_value(Value::Array(answers)).map_err(failed)?;
        let holders = expiries.into_iter().map(|(claim, expiry)| {
            let stored = stored.remove(&claim).unwrap_or_default();
            (claim, expiry as u64, stored)
        });
        seen.shared.extend(holders);
    }
    if !queue.is_empty() {
        let mut waiters = Pipeline::with_capacity(1);
        waiters.cmd("HMGET").arg(keys.beside("who")).arg(&queue);
        let answers = servers.ask(ACTION, keys, &waiters).await?;
        if let Some(Value::Array(waiters)) = answers.first() {
            seen.waiters.extend(waiters.iter().filter_map(text));
        }
    }
    Ok(seen)
}

#[async_trait]
impl Inspect for Servers {
    async fn look(&self, name: &LockName) -> Result<LockView> {
        let seen = see(self, name).await?;
        if seen.is_unreadable() {
            return Err(unreadable(self.state.store(), name));
        }
        let view = seen.view(name, true);
        Ok(view.unwrap_or_else(|| LockView::free(name.clone())))
    }

    async fn list(&self, prefix: &str, at: Option<Cursor>, limit: usize) -> Result<Page<LockView>> {
        // In a cluster one node after another: the cursor is the node's index, and the node's own cursor.
        let place = |at: Cursor| {
            let (node, cursor) = at.0.split_once(':')?;
            Some((node.parse::<usize>().ok()?, cursor.parse::<u64>().ok()?))
        };
        let (index, cursor) = match at {
            None => (0, 0),
            Some(at) => place(at.clone()).ok_or_else(|| at.refused())?,
        };
        let nodes = self.nodes();
        let Some(node) = nodes.get(index) else {
            return Ok(Page::new(Vec::new(), None));
        };
        let connection = node.connection(&self.state).await?;
        let answer = connection.send(&scan(prefix, cursor, limit)).await;
        let (next, names) = answer
            .and_then(|answer| scanned(&answer))
            .map_err(|error| self.state.failed("listing locks", None, error))?;
        let looks = names.into_iter().map(|name| async move {
            let seen = see(self, &name).await?;
            let foreign = seen.is_waited_for();
            Ok(seen.view(&name, foreign))
        });
        let items = held(looks).await?;
        let next = match (next == "0", index + 1 < nodes.len()) {
            (false, _) => Some(Cursor(format!("{index}:{next}"))),
            (true, true) => Some(Cursor(format!("{}:0", index + 1))),
            (true, false) => None,
        };
        Ok(Page::new(items, next))
    }

    async fn evict(&self, name: &LockName, token: Token, how: Evict) -> Result<bool> {
        evict(self, name, token, how).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(findings(self).await)
    }
}
