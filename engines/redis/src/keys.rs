//! The keys of a lock, and hash slots as a Redis Cluster computes them.

use std::borrow::Cow;
use std::sync::LazyLock;

use fencelock_core::{Error, LockName, Result};
use redis::Cmd;

/// The beginning of fencelock's own keys, perhaps after a tag.
const OWN: &str = "fencelock:";

/// Refuses a lock whose key would be one of fencelock's own, such as the counter of tokens or the queue of another lock.
pub(crate) fn check_name(name: &LockName) -> Result<()> {
    let text = name.as_str();
    let is_own = text.starts_with(OWN) || (text.starts_with('{') && text.contains("}:fencelock:"));
    if !is_own {
        return Ok(());
    }
    let why = "on Redis the keys that begin with fencelock: (also after a tag in braces) are fencelock's own; use another name";
    Err(Error::invalid("lock name", text, why))
}

pub(crate) const SLOTS: u16 = 16_384;

/// The counter of tokens, except in a cluster.
pub(crate) const COUNTER: &str = "fencelock:counter";

/// The store's records, by their scopes.
pub(crate) const RECORD: &str = "fencelock:record";

/// A part of every key that belongs to a lock.
const QUEUE: &str = "fencelock:line";

/// CRC-16 with the polynomial 0x1021 and the initial value 0, by byte.
const CRC: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn hash(bytes: &[u8]) -> u16 {
    let crc = bytes.iter().fold(0u16, |crc, byte| {
        (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)]
    });
    crc % SLOTS
}

/// The tag of a key: the text in its first braces, unless it is empty.
fn tag_in(key: &str) -> Option<&str> {
    let inside = &key[key.find('{')? + 1..];
    let tag = &inside[..inside.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

pub(crate) fn slot(key: &str) -> u16 {
    hash(tag_in(key).unwrap_or(key).as_bytes())
}

/// A tag of a slot: the smallest number that hashes to it.
pub(crate) fn tag(slot: u16) -> u32 {
    static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
        let mut tags = vec![u32::MAX; usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0u32.. {
            let tag = &mut tags[usize::from(hash(number.to_string().as_bytes()))];
            if *tag == u32::MAX {
                *tag = number;
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_boxed_slice()
    });
    TAGS[usize::from(slot % SLOTS)]
}

/// The key of a lock's queue. It has the tag that Redis computes for the name, so that both keys are in one slot. If the name
/// cannot be a tag, as `a}b` cannot, the key has another tag of the same slot.
pub(crate) fn queue_key(name: &str) -> String {
    match tag_in(name) {
        Some(tag) => format!("{{{tag}}}:{QUEUE}:{name}"),
        None if name.contains('}') => format!("{{{}}}:{QUEUE}:{name}", tag(slot(name))),
        // The common case, in one piece.
        None => ["{", name, "}:", QUEUE].concat(),
    }
}

/// The counter of a store or, in a cluster, of a slot.
pub(crate) fn counter(slot: Option<u16>) -> Cow<'static, str> {
    match slot {
        Some(slot) => format!("{COUNTER}:{{{}}}", tag(slot)).into(),
        None => COUNTER.into(),
    }
}

#[derive(Debug)]
pub(crate) struct Keys<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) slot: u16,
    queue: String,
    counter: Cow<'static, str>,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(name: &'a LockName, cluster: bool) -> Self {
        let slot = cluster.then(|| slot(name.as_str()));
        Self {
            name,
            slot: slot.unwrap_or(0),
            queue: queue_key(name.as_str()),
            counter: counter(slot),
        }
    }

    /// In a cluster: the channel for the grants of this slot to this process.
    pub(crate) fn channel(&self, own: &str) -> Option<String> {
        let tag = self.counter.strip_prefix(COUNTER)?;
        (!tag.is_empty()).then(|| format!("fencelock:{own}{tag}"))
    }

    /// Appends all keys, as most scripts expect them.
    pub(crate) fn push_all(&self, command: &mut Cmd) {
        self.push_beside(command, 6);
        command.arg(&*self.counter);
    }

    /// Appends all keys but the counter.
    pub(crate) fn push_without_counter(&self, command: &mut Cmd) {
        self.push_beside(command, 5);
    }

    /// Appends the lock, its queue, and the counter.
    pub(crate) fn push_lock_queue_and_counter(&self, command: &mut Cmd) {
        command.arg(3).arg(self.name.as_str()).arg(&self.queue);
        command.arg(&*self.counter);
    }

    /// Appends the lock and its queue.
    pub(crate) fn push_lock_and_queue(&self, command: &mut Cmd) {
        command.arg(2).arg(self.name.as_str()).arg(&self.queue);
    }

    fn push_beside(&self, command: &mut Cmd, count: u8) {
        command.arg(count).arg(self.name.as_str()).arg(&self.queue);
        let mut key = String::with_capacity(self.queue.len() + 12);
        for suffix in [":who", ":readers", ":readers:who"] {
            key.clear();
            key.push_str(&self.queue);
            key.push_str(suffix);
            command.arg(&key);
        }
    }

    pub(crate) fn queue(&self) -> &str {
        &self.queue
    }

    /// Another key of the lock, with this suffix.
    pub(crate) fn beside(&self, suffix: &str) -> String {
        format!("{}:{suffix}", self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_a_cluster() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, expected) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("foo{bar}baz", 5061),
            ("bar", 5061),
            ("foo{}{bar}", 8363),
            ("", 0),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn every_slot_has_a_tag() {
        for at in 0..SLOTS {
            let tag = tag(at);
            assert_eq!(slot(&format!("fencelock:counter:{{{tag}}}")), at);
        }
    }

    #[test]
    fn side_keys_carry_a_tag_of_the_names_slot() {
        for (name, key) in [
            ("a", "{a}:fencelock:line"),
            ("a{b", "{a{b}:fencelock:line"),
            ("a{t}b", "{t}:fencelock:line:a{t}b"),
            ("{t}", "{t}:fencelock:line:{t}"),
        ] {
            assert_eq!(queue_key(name), key);
        }
        for name in [
            "a", "a{b", "a{t}b", "{t}", "{}a", "a}b", "}a{", "}", "{}", "a{}{b}",
        ] {
            let queue = queue_key(name);
            assert_eq!(slot(&queue), slot(name), "{name}: {queue}");
            assert!(queue.starts_with('{') && queue.contains(QUEUE), "{queue}");
        }
    }
}
