//! What this client knows of the claims that it sent.
//!
//! Keys are reused: etcd remembers every key until its history is compacted, and reads all of them when a client asks for the
//! queue of a lock. So a key is named after its client and a number. No other claim of the client for the same lock has that
//! number at that time. A key that a late request might still change is never reused: a new *series* of numbers begins.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use etcd_client::KeyValue;
use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, LockName, Mode, Token, Tokens};

use crate::layout::KeyNumber;
use crate::session::{Pin, Session};
use crate::stored::{DOWNGRADED, token_at};

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) number: KeyNumber,
    /// The create revision of its key, and its tokens, once known.
    pub(crate) created: Option<(i64, Tokens)>,
    pub(crate) session: Arc<Session>,
    /// The offset of the token that the store has.
    pub(crate) token_offset: u32,
    pub(crate) base: Option<u64>,
    pub(crate) holds: bool,
    pub(crate) mode: Mode,
    pub(crate) waits_for: Option<WaitsFor>,
    /// For each request without a reply: the sessions into one of which it may still put the key.
    pub(crate) in_doubt: Vec<Vec<Arc<Session>>>,
    /// It was withdrawn or abandoned, perhaps without a reply.
    pub(crate) withdrawn: bool,
    /// Sessions that are kept alive for it.
    pub(crate) pins: Vec<Arc<Pin>>,
    /// The sessions into which a renewal without a reply may still move the key. They are kept alive until the withdrawal.
    pub(crate) moves_in_doubt: Vec<Arc<Pin>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The deletion or expiry of this key.
    Key(Predecessor),
    /// The deletion or expiry of any key in the queue.
    Any,
}

/// A claim before another in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
    pub(crate) is_head: bool,
}

impl WaitsFor {
    pub(crate) fn key(kv: &KeyValue, is_head: bool) -> Self {
        Self::Key(Predecessor {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            is_head,
        })
    }
}

impl Entry {
    /// The offset of a token that the claim may record. `None` if the token is of another grant.
    pub(crate) fn offset_of(&self, token: Token) -> Option<u32> {
        let (_, tokens) = self.created?;
        let valid = match self.token_offset {
            DOWNGRADED => Tokens::one(token_at(tokens.first, DOWNGRADED)),
            _ => tokens,
        };
        if !valid.contains(token) {
            return None;
        }
        u32::try_from(token.0 - tokens.first.0).ok()
    }

    pub(crate) fn keep(&mut self, pin: Arc<Pin>) {
        add(&mut self.pins, pin);
    }

    /// Keeps the session of a failed move: until the next move, or until the withdrawal if the request had no reply.
    pub(crate) fn keep_doubtful(&mut self, pin: Arc<Pin>, in_doubt: bool) {
        let pins = match in_doubt {
            true => &mut self.moves_in_doubt,
            false => &mut self.pins,
        };
        add(pins, pin);
    }

    /// Marks the claim as no longer needed. A key that a request in doubt may still put is then deleted.
    pub(crate) fn mark_withdrawn(&mut self) {
        self.withdrawn = true;
        self.pins.clear();
        self.moves_in_doubt.clear();
    }

    /// Whether a request without a reply may still put the key.
    fn is_in_doubt(&self) -> bool {
        let mut sessions = self.in_doubt.iter().flatten();
        sessions.any(|session| !session.has_ended())
    }
}

fn add(pins: &mut Vec<Arc<Pin>>, pin: Arc<Pin>) {
    let mut known = pins.iter();
    if !known.any(|known| Arc::ptr_eq(&known.session, &pin.session)) {
        pins.push(pin);
    }
}

/// The claims that have a key, or may have one.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    all: HashMap<ClaimId, (LockName, Entry)>,
    numbers: HashMap<LockName, Vec<KeyNumber>>,
    series: u64,
}

impl Entries {
    pub(crate) fn get(&self, id: ClaimId) -> Option<&Entry> {
        self.all.get(&id).map(|(_, entry)| entry)
    }

    pub(crate) fn get_mut(&mut self, id: ClaimId) -> Option<&mut Entry> {
        self.all.get_mut(&id).map(|(_, entry)| entry)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Entry> {
        self.all.values().map(|(_, entry)| entry)
    }

    /// The key number of a claim: its own, or the lowest that is free.
    pub(crate) fn number(&self, claim: &Claim) -> KeyNumber {
        // The key of a claim that was withdrawn may be deleted at any moment.
        if let Some(entry) = self.get(claim.id).filter(|entry| !entry.withdrawn) {
            return entry.number;
        }
        let series = self.series;
        let taken = self.numbers.get(&claim.name);
        let is_free = |index: &u32| {
            let number = KeyNumber {
                series,
                index: *index,
            };
            taken.is_none_or(|taken| !taken.contains(&number))
        };
        let index = (0..u32::MAX).find(is_free).unwrap_or(u32::MAX);
        KeyNumber { series, index }
    }

    /// Adds a claim, and reserves its key number.
    pub(crate) fn insert(&mut self, claim: &Claim, entry: Entry) {
        let number = entry.number;
        let known = self.get(claim.id);
        if known.is_none_or(|known| known.number != number) {
            self.remove(claim.id);
            let numbers = self.numbers.entry(claim.name.clone()).or_default();
            numbers.push(number);
        }
        self.all.insert(claim.id, (claim.name.clone(), entry));
    }

    /// Removes a claim whose key is gone, and frees its key number.
    pub(crate) fn remove(&mut self, id: ClaimId) {
        let Some((name, entry)) = self.all.remove(&id) else {
            return;
        };
        if let Some(numbers) = self.numbers.get_mut(&name) {
            numbers.retain(|number| *number != entry.number);
            if numbers.is_empty() {
                self.numbers.remove(&name);
            }
        }
    }

    /// After this call, no key that exists or existed is reused.
    pub(crate) fn begin_series(&mut self) {
        self.series += 1;
    }

    /// Removes a claim unless a request without a reply may still put its key.
    pub(crate) fn remove_unless_in_doubt(&mut self, id: ClaimId) {
        if !self.get(id).is_some_and(Entry::is_in_doubt) {
            self.remove(id);
        }
    }

    /// Removes a claim that the core will not withdraw.
    pub(crate) fn give_up(&mut self, id: ClaimId) {
        self.remove_unless_in_doubt(id);
        if let Some(entry) = self.get_mut(id) {
            entry.mark_withdrawn();
        }
    }

    /// After the end of a session: removes the claims that were withdrawn and have no key any more.
    pub(crate) fn remove_settled(&mut self) {
        let is_settled = |entry: &Entry| {
            let is_gone = entry.created.is_none() || entry.session.has_ended();
            entry.withdrawn && is_gone && !entry.is_in_doubt()
        };
        let all = self.all.iter();
        let settled = all.filter(|(_, (_, entry))| is_settled(entry));
        let settled: Vec<ClaimId> = settled.map(|(id, _)| *id).collect();
        for id in settled {
            self.remove(id);
        }
    }

    /// The keys of all claims. A claim is here before its key is sent.
    pub(crate) fn keys(&self) -> HashSet<Vec<u8>> {
        let claims = self.values().filter(|entry| !entry.withdrawn);
        claims.map(|entry| entry.key.as_bytes().to_vec()).collect()
    }

    /// Removes the claim that was withdrawn and had this key.
    pub(crate) fn remove_withdrawn(&mut self, key: &[u8]) {
        let withdrawn = self.all.iter().find(|(_, (_, entry))| {
            entry.withdrawn && entry.key.as_bytes() == key && !entry.is_in_doubt()
        });
        if let Some((id, _)) = withdrawn {
            self.remove(*id);
        }
    }

    pub(crate) fn another_has(&self, id: ClaimId, key: &str) -> bool {
        let mut others = self.all.iter().filter(|(other, _)| **other != id);
        others.any(|(_, (_, entry))| entry.key == key)
    }
}
