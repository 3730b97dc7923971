//! The value of a claim's key: how it is written and read. It is JSON, for people with `etcdctl get`. The client never trusts
//! what it reads.

use std::num::NonZeroU32;
use std::time::Duration;

use etcd_client::KeyValue;
use fencelock_core::engine::{Claim, HolderView, WaiterView};
use fencelock_core::support::admission::admits;
use fencelock_core::{ClaimId, Mode, Token, Tokens};
use serde_json::{Map, Value};

use crate::layout::Layout;

const VERSION: u64 = 1;

pub(crate) const TOKENS_PER_REVISION: u32 = 16;

/// The offset of the token of a hold that was downgraded to shared: above the tokens that it had before, and below those of
/// all later claims.
pub(crate) const DOWNGRADED: u32 = TOKENS_PER_REVISION - 1;

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// `None` if another program has written the key.
    pub(crate) id: Option<ClaimId>,
    pub(crate) owner: String,
    pub(crate) label: Option<String>,
    pub(crate) mode: Mode,
    pub(crate) ttl: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) tokens: Tokens,
    /// The token of the range that is current.
    pub(crate) token: Token,
    /// The id under which its client receives messages.
    pub(crate) mailbox: Option<String>,
    pub(crate) key: Vec<u8>,
    pub(crate) revision: i64,
    pub(crate) lease: i64,
}

/// The value for a claim whose current token has this offset in its range.
pub(crate) fn write(claim: &Claim, base: Option<u64>, mailbox: &str, offset: u32) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let (id, mode, owner) = (claim.id, claim.mode.as_str(), quoted(&claim.owner));
    let (ttl, lock_delay) = (millis(claim.ttl), millis(claim.lock_delay));
    let tokens = token_count(claim, base);
    // Formatted by hand: building a JSON value first takes longer than all other work for a lock in this process.
    let mut value = format!(
        r#"{{"fencelock":{VERSION},"id":"{id}","mode":"{mode}","owner":{owner},"ttl_ms":{ttl},"lock_delay_ms":{lock_delay},"tokens":{tokens},"at":{offset},"mailbox":"{mailbox}""#
    );
    let mut add = |name: &str, text: String| {
        value.extend([",\"", name, "\":", &text]);
    };
    if let Some(base) = base {
        add("base", base.to_string());
    }
    if let Mode::Permit { of } = claim.mode {
        add("of", of.to_string());
    }
    if let Some(label) = &claim.label {
        add("label", quoted(label));
    }
    value.push('}');
    value
}

/// How many tokens a grant to this claim has.
pub(crate) fn token_count(claim: &Claim, base: Option<u64>) -> u32 {
    match (claim.mode, base) {
        (Mode::Exclusive, Some(_)) => claim.reserve.clamp(1, DOWNGRADED),
        _ => 1,
    }
}

/// The first token of a claim whose key has this create revision.
pub(crate) fn first_token(base: Option<u64>, revision: i64) -> Token {
    let revision = revision.unsigned_abs();
    Token(match base {
        Some(base) => base + revision * u64::from(TOKENS_PER_REVISION),
        None => revision,
    })
}

pub(crate) fn base_of(kv: &KeyValue) -> Option<u64> {
    let stored: Map<String, Value> = serde_json::from_slice(kv.value()).ok()?;
    let base = stored.get("base").and_then(Value::as_u64);
    base.filter(|base| *base < Token::END.0)
}

/// The token with this offset in a range.
pub(crate) fn token_at(first: Token, offset: u32) -> Token {
    Token(first.0 + u64::from(offset))
}

/// Reads the value of a key. The error says what is wrong with it.
pub(crate) fn read(layout: Layout, kv: &KeyValue) -> Result<Stored, &'static str> {
    let revision = kv.create_revision();
    parse(layout, kv.key(), kv.value(), revision, kv.lease())
}

/// Reads these bytes as the value of a key, in each layout.
pub(crate) fn read_bytes(bytes: &[u8]) {
    for layout in [Layout::Fencelock, Layout::Concurrency] {
        if let Ok(stored) = parse(layout, b"key", bytes, 7, 1) {
            drop(stored.holder(Some(Duration::MAX)));
            drop(stored.waiter());
        }
    }
}

fn parse(
    layout: Layout,
    key: &[u8],
    value: &[u8],
    revision: i64,
    lease: i64,
) -> Result<Stored, &'static str> {
    let stored: Option<Map<String, Value>> = serde_json::from_slice(value).ok();
    let ours = stored.filter(|stored| stored.contains_key("fencelock"));
    let Some(fields) = ours else {
        return match layout {
            Layout::Fencelock => Err("the key is not a claim of fencelock; remove it"),
            Layout::Concurrency => Ok(foreign(key, value, revision, lease)),
        };
    };
    if fields["fencelock"].as_u64() != Some(VERSION) {
        return Err(
            "another version of fencelock stored it; use that version, or another lock name",
        );
    }
    let damaged = "its value is damaged; remove the key";
    let text = |field: &str| fields.get(field).and_then(Value::as_str).ok_or(damaged);
    let number = |field: &str| fields.get(field).and_then(Value::as_u64);
    let small = |field: &str| {
        let number = number(field).and_then(|n| u32::try_from(n).ok());
        number.ok_or(damaged)
    };
    let mode = match text("mode")? {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permit" => Mode::Permit {
            of: NonZeroU32::new(small("of")?).ok_or(damaged)?,
        },
        _ => return Err(damaged),
    };
    let first = first_token(number("base").filter(|base| *base < Token::END.0), revision);
    let (count, offset) = (small("tokens")?.clamp(1, TOKENS_PER_REVISION), small("at")?);
    Ok(Stored {
        id: Some(text("id")?.parse().map_err(|_| damaged)?),
        owner: text("owner")?.to_owned(),
        label: text("label").ok().map(str::to_owned),
        mode,
        ttl: number("ttl_ms").map(Duration::from_millis),
        lock_delay: Duration::from_millis(number("lock_delay_ms").unwrap_or(0)),
        // A hold that was downgraded no longer has its range.
        tokens: match offset < count {
            true => Tokens::new(first, count),
            false => Tokens::one(token_at(first, offset)),
        },
        token: token_at(first, offset),
        mailbox: text("mailbox").ok().map(str::to_owned),
        key: key.to_vec(),
        revision,
        lease,
    })
}

/// A claim of Go's `concurrency` or of `etcdctl lock`.
fn foreign(key: &[u8], value: &[u8], revision: i64, lease: i64) -> Stored {
    let token = first_token(None, revision);
    let owner = match value {
        [] => String::from_utf8_lossy(key),
        value => String::from_utf8_lossy(value),
    };
    Stored {
        id: None,
        owner: owner.into_owned(),
        label: None,
        mode: Mode::Exclusive,
        ttl: None,
        lock_delay: Duration::ZERO,
        tokens: Tokens::one(token),
        token,
        mailbox: None,
        key: key.to_vec(),
        revision,
        lease,
    }
}

impl Stored {
    /// Hides the owner of a claim that is in the queue of another lock: that owner does not hold this lock, and must not join
    /// it.
    pub(crate) fn hide_owner(&mut self) {
        self.id = None;
        self.mailbox = None;
        self.owner = String::from_utf8_lossy(&self.key).into_owned();
    }

    /// The claim as a holder. `left` is the remaining time of its session's lease.
    pub(crate) fn holder(&self, left: Option<Duration>) -> HolderView {
        let longest = self.ttl.map(|ttl| ttl + self.lock_delay);
        HolderView::new(self.owner.clone(), self.mode)
            .claim(self.id)
            .token(self.token)
            .ttl_left(left.map(|left| longest.map_or(left, |longest| longest.min(left))))
            .lock_delay(self.lock_delay)
            .label(self.label.clone())
    }

    pub(crate) fn waiter(&self) -> WaiterView {
        WaiterView::new(self.owner.clone(), self.mode).label(self.label.clone())
    }
}

/// How many claims hold, counted from the head of the queue: each is admitted beside all claims ahead of it.
pub(crate) fn admitted(queue: impl Iterator<Item = Mode>) -> usize {
    let mut holders: Vec<Mode> = Vec::new();
    for mode in queue {
        if !admits(mode, holders.iter().copied()) {
            break;
        }
        holders.push(mode);
    }
    holders.len()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_admitted_from_the_head_of_the_queue() {
        let (x, s) = (Mode::Exclusive, Mode::Shared);
        let p = |n| Mode::Permit {
            of: NonZeroU32::new(n).unwrap(),
        };
        for (queue, holds) in [
            (&[][..], 0),
            (&[x, x], 1),
            (&[s, s, x, s], 2),
            (&[x, s], 1),
            (&[p(2), p(2), p(2)], 2),
            (&[p(3), p(1), p(3)], 1),
            (&[s, p(3)], 1),
            (&[p(3), s], 1),
        ] {
            assert_eq!(admitted(queue.iter().copied()), holds, "{queue:?}");
        }
    }
}
