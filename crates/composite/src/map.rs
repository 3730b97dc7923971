//! Which shard a name lies on: the map of a set.

use std::collections::BTreeMap;

use fencelock_core::{Error, Result};

use crate::hash::Bids;

/// The greatest weight of a shard.
pub const MAX_WEIGHT: u8 = 100;

/// The longest id of a shard, in bytes.
const MAX_ID_BYTES: usize = 32;

/// Which part of a name decides where it lies. Names with the same part lie on the same shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRule {
    /// The text within the first `{…}`, as in a Redis Cluster. The whole name if there are no braces, or nothing is in them.
    #[default]
    Braces,
    /// The text before the first slash. The whole name if there is no slash, or nothing is before it.
    Slash,
}

impl KeyRule {
    /// The rule as it is written in a URL, a file and the record: `{}` or `/`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Braces => "{}",
            Self::Slash => "/",
        }
    }

    /// From [`as_str`](Self::as_str).
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let rules = [Self::Braces, Self::Slash];
        rules.into_iter().find(|rule| rule.as_str() == text)
    }

    /// The part of a name that decides where it lies.
    ///
    /// ```
    /// use fencelock_composite::KeyRule;
    ///
    /// assert_eq!(KeyRule::Braces.key("{customer-7}/invoice"), "customer-7");
    /// assert_eq!(KeyRule::Slash.key("customer-7/invoice"), "customer-7");
    /// ```
    #[must_use]
    pub fn key(self, name: &str) -> &str {
        let part = match self {
            Self::Braces => name.split_once('{').and_then(|(_, rest)| {
                let (within, _) = rest.split_once('}')?;
                Some(within)
            }),
            Self::Slash => name.split_once('/').map(|(before, _)| before),
        };
        part.filter(|part| !part.is_empty()).unwrap_or(name)
    }
}

/// The shards of a set with their weights, and the rule for the part of a name that decides.
///
/// ```
/// use fencelock_composite::{KeyRule, Map};
///
/// # fn main() -> fencelock_core::Result<()> {
/// let map = Map::new([("a", 1), ("b", 1), ("c", 2)], KeyRule::Braces)?;
/// assert_eq!(map.shard_of("{customer-7}/invoice"), map.shard_of("{customer-7}/stock"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    weights: BTreeMap<String, u8>,
    key: KeyRule,
    bids: Bids,
    /// In their order.
    ids: Vec<String>,
}

impl Map {
    /// A map of shards, by their ids, with weights.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are no shards, an id is given twice, an id is not 1 to 32 ASCII letters, digits and `_`, or
    /// a weight is not from 1 to 100.
    pub fn new<'a>(shards: impl IntoIterator<Item = (&'a str, u8)>, key: KeyRule) -> Result<Self> {
        let mut weights = BTreeMap::new();
        for (id, weight) in shards {
            let refuse = |why: &str| Err(Error::invalid("shard", id, why));
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if id.is_empty() || id.len() > MAX_ID_BYTES || !id.chars().all(plain) {
                return refuse("an id must have 1 to 32 ASCII letters, digits and _");
            }
            if !(1..=MAX_WEIGHT).contains(&weight) {
                return refuse("its weight must be a whole number from 1 to 100");
            }
            if weights.insert(id.to_owned(), weight).is_some() {
                return refuse("it is there twice");
            }
        }
        if weights.is_empty() {
            return Err(Error::invalid(
                "shards",
                "",
                "there is none; name at least one",
            ));
        }
        let ids = weights.keys().cloned().collect();
        let bids = Bids::of(weights.iter().map(|(id, weight)| (id.as_str(), *weight)));
        Ok(Self {
            weights,
            key,
            bids,
            ids,
        })
    }

    /// The shard on which a name lies: the one with the greatest [`hash`](crate::hash) of the name's key, and among equal ones the first id.
    #[must_use]
    pub fn shard_of(&self, name: &str) -> &str {
        &self.ids[self.place_of(name)]
    }

    /// The place of that shard in the order of the ids.
    pub(crate) fn place_of(&self, name: &str) -> usize {
        match self.ids.len() {
            1 => 0,
            _ => self.bids.greatest(self.key.key(name)),
        }
    }

    /// The ids with their weights, in the order of the ids.
    pub fn shards(&self) -> impl Iterator<Item = (&str, u8)> {
        self.weights
            .iter()
            .map(|(id, weight)| (id.as_str(), *weight))
    }

    /// The weight of a shard; `None` if it is no shard of the map.
    pub(crate) fn weight(&self, id: &str) -> Option<u8> {
        self.weights.get(id).copied()
    }

    /// The rule that says which part of a name decides.
    #[must_use]
    pub const fn key(&self) -> KeyRule {
        self.key
    }
}

impl std::fmt::Display for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shards = self.shards().map(|(id, weight)| match weight {
            1 => id.to_owned(),
            _ => format!("{id} (weight {weight})"),
        });
        let shards: Vec<_> = shards.collect();
        write!(f, "{}, key={}", shards.join(", "), self.key.as_str())
    }
}
