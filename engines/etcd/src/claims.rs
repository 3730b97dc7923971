//! What this client knows of the claims that it sent, and what their keys are called.
//!
//! Keys are used again: etcd remembers every key that it ever had until it is compacted, and looks at all of them when it
//! is asked who stands in a line. So a key is named after its client and a number that no other claim of the client has at
//! that lock just now. A key that a late request might still touch is never used again: then a new *series* begins.

use std::collections::HashMap;
use std::sync::Arc;

use etcd_client::KeyValue;
use fencelock_core::engine::Claim;
use fencelock_core::{ClaimId, LockName, Mode, Token, Tokens};

use crate::session::{Pin, Session};
use crate::value::at_token;

/// What this client knows of a claim that it sent.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) key: String,
    pub(crate) number: Number,
    /// The create revision of its key and its tokens, once known.
    pub(crate) there: Option<(i64, Tokens)>,
    /// On whose lease its key is.
    pub(crate) on: Arc<Session>,
    /// Which of its tokens the store has.
    pub(crate) at: u32,
    pub(crate) base: Option<u64>,
    pub(crate) holds: bool,
    pub(crate) mode: Mode,
    /// What it waits for the end of.
    pub(crate) waits_for: Option<Wanted>,
    /// The sessions in one of which a request without an answer may put it still; of each such request.
    pub(crate) doubtful: Vec<Vec<Arc<Session>>>,
    /// It was withdrawn or given up, and that is not certain yet.
    pub(crate) undone: bool,
    /// Sessions that are kept alive for it.
    pub(crate) pins: Vec<Arc<Pin>>,
}

/// The end of what may change a waiter's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Key(Before),
    /// Any of the line.
    Any,
}

/// Who stands before a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) key: Vec<u8>,
    /// The revision that created it.
    pub(crate) created: i64,
    /// Nobody stood before that one.
    pub(crate) is_first: bool,
}

impl Wanted {
    /// The end of this one, who was the first then or not.
    pub(crate) fn end_of(kv: &KeyValue, is_first: bool) -> Self {
        Self::Key(Before {
            key: kv.key().to_vec(),
            created: kv.create_revision(),
            is_first,
        })
    }
}

impl Placed {
    /// The token that the store has.
    pub(crate) fn recorded(&self) -> Option<Token> {
        let (_, tokens) = self.there?;
        Some(at_token(tokens.first, self.at))
    }

    fn is_in_doubt(&self) -> bool {
        let mut sessions = self.doubtful.iter().flatten();
        sessions.any(|session| !session.has_ended())
    }
}

/// What a claim's key is called, besides the name of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    pub(crate) series: u64,
    pub(crate) at: u32,
}

/// The claims that have a key, or may have one.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    all: HashMap<ClaimId, (LockName, Placed)>,
    /// Those that are in use, by lock.
    numbers: HashMap<LockName, Vec<Number>>,
    series: u64,
    /// Locks that were found taken of late, and how many grants without anybody else it takes to forget that.
    hot: HashMap<LockName, u8>,
}

/// How many grants it takes for a lock to cool down.
const HOT: u8 = 8;

/// How many hot locks are remembered. To forget one costs a request and nothing else.
const MOST_HOT: usize = 4096;

impl Claims {
    pub(crate) fn get(&self, id: ClaimId) -> Option<&Placed> {
        self.all.get(&id).map(|(_, placed)| placed)
    }

    pub(crate) fn get_mut(&mut self, id: ClaimId) -> Option<&mut Placed> {
        self.all.get_mut(&id).map(|(_, placed)| placed)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Placed> {
        self.all.values().map(|(_, placed)| placed)
    }

    /// The number of a claim: the one that it has, or the lowest that nobody has.
    pub(crate) fn number(&self, claim: &Claim) -> Number {
        // What was undone may be deleted at any moment.
        if let Some(placed) = self.get(claim.id).filter(|placed| !placed.undone) {
            return placed.number;
        }
        let series = self.series;
        let taken = self.numbers.get(&claim.name);
        let is_free = |at: &u32| {
            let number = Number { series, at: *at };
            taken.is_none_or(|taken| !taken.contains(&number))
        };
        let at = (0..u32::MAX).find(is_free).unwrap_or(u32::MAX);
        Number { series, at }
    }

    /// Notes a claim, and that its number is in use.
    pub(crate) fn insert(&mut self, claim: &Claim, placed: Placed) {
        let number = placed.number;
        if self
            .get(claim.id)
            .is_none_or(|known| known.number != number)
        {
            self.remove(claim.id);
            let numbers = self.numbers.entry(claim.name.clone()).or_default();
            numbers.push(number);
        }
        self.all.insert(claim.id, (claim.name.clone(), placed));
    }

    /// Forgets a claim whose key is gone. Another may have its number.
    pub(crate) fn remove(&mut self, id: ClaimId) {
        let Some((name, placed)) = self.all.remove(&id) else {
            return;
        };
        if let Some(numbers) = self.numbers.get_mut(&name) {
            numbers.retain(|number| *number != placed.number);
            if numbers.is_empty() {
                self.numbers.remove(&name);
            }
        }
    }

    /// Whether a lock was found taken of late: then it is asked at once who stands in line.
    pub(crate) fn is_hot(&self, name: &LockName) -> bool {
        self.hot.contains_key(name)
    }

    /// A lock was found taken.
    pub(crate) fn heat(&mut self, name: &LockName) {
        if self.hot.len() >= MOST_HOT && !self.hot.contains_key(name) {
            self.hot.clear();
        }
        self.hot.insert(name.clone(), HOT);
    }

    /// A claim had the lock at once.
    pub(crate) fn cool(&mut self, name: &LockName) {
        if let Some(left) = self.hot.get_mut(name) {
            *left -= 1;
            if *left == 0 {
                self.hot.remove(name);
            }
        }
    }

    /// From now on no key is used again that there was before.
    pub(crate) fn begin_series(&mut self) {
        self.series += 1;
    }

    /// Forgets the claim unless a request without an answer may put it still.
    pub(crate) fn remove_unless_doubtful(&mut self, id: ClaimId) {
        if !self.get(id).is_some_and(Placed::is_in_doubt) {
            self.remove(id);
        }
    }

    /// Forgets a claim that nobody will withdraw. What a request without an answer may put still is nobody's then.
    pub(crate) fn give_up(&mut self, id: ClaimId) {
        self.remove_unless_doubtful(id);
        if let Some(placed) = self.get_mut(id) {
            placed.undone = true;
            placed.pins.clear();
        }
    }

    /// Forgets the claims that were undone and of which nothing can be left: a session has ended.
    pub(crate) fn remove_settled(&mut self) {
        let is_settled = |placed: &Placed| {
            let is_gone = placed.there.is_none() || placed.on.has_ended();
            placed.undone && is_gone && !placed.is_in_doubt()
        };
        let all = self.all.iter();
        let settled = all.filter(|(_, (_, placed))| is_settled(placed));
        let settled: Vec<ClaimId> = settled.map(|(id, _)| *id).collect();
        for id in settled {
            self.remove(id);
        }
    }

    /// Forgets the claim that was withdrawn and had this key.
    pub(crate) fn remove_undone(&mut self, key: &[u8]) {
        let undone = self.all.iter().find(|(_, (_, placed))| {
            placed.undone && placed.key.as_bytes() == key && !placed.is_in_doubt()
        });
        if let Some((id, _)) = undone {
            self.remove(*id);
        }
    }

    /// Whether another claim has this key.
    pub(crate) fn is_anothers(&self, id: ClaimId, key: &str) -> bool {
        let mut others = self.all.iter().filter(|(other, _)| **other != id);
        others.any(|(_, (_, placed))| placed.key == key)
    }
}
