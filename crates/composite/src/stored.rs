//! The format of the record in each store of a set.

use std::collections::BTreeMap;

use fencelock_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::map::{KeyRule, Map};
use crate::promises::Promised;

/// The one kind of record that this version knows: names that are routed to stores.
const ROUTED: &str = "routed";

/// The record of one store. A change of the map will have more phases than the first, and a second map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The name of the set.
    pub(crate) set: String,
    /// The id of this store in it.
    #[serde(rename = "self")]
    pub(crate) shard: String,
    /// One more with each change of the map.
    pub(crate) version: u64,
    kind: String,
    phase: u32,
    key: String,
    old: Shards,
    pub(crate) promises: Promised,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shards {
    shards: BTreeMap<String, u8>,
}

impl Stored {
    /// The first record of a store in a new set.
    pub(crate) fn first(set: &str, shard: &str, map: &Map, promises: Promised) -> Self {
        let shards = map.shards().map(|(id, weight)| (id.to_owned(), weight));
        Self {
            set: set.to_owned(),
            shard: shard.to_owned(),
            version: 1,
            kind: ROUTED.to_owned(),
            phase: 0,
            key: map.key().as_str().to_owned(),
            old: Shards {
                shards: shards.collect(),
            },
            promises,
        }
    }

    pub(crate) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::internal(&self.set, error.to_string()))
    }

    /// # Errors
    /// Why this version cannot use the text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let read = serde_json::from_str::<Self>(text);
        let stored = read.map_err(|error| format!("its record cannot be read ({error})"))?;
        match (stored.kind.as_str(), stored.phase) {
            (ROUTED, 0) => Ok(stored),
            _ => Err(
                "its record is of a newer fencelock, or its map is being changed; use that version"
                    .to_owned(),
            ),
        }
    }

    /// The map, as it is written.
    fn map(&self) -> Option<Map> {
        let key = KeyRule::from_text(&self.key)?;
        let shards = self.old.shards.iter();
        let shards = shards.map(|(id, weight)| (id.as_str(), *weight));
        Map::new(shards, key).ok()
    }

    /// # Errors
    /// In what this is not the record of this shard.
    pub(crate) fn check(&self, set: &str, shard: &str, map: &Map) -> Result<(), String> {
        let Self {
            set: its,
            shard: own,
            ..
        } = self;
        if its != set {
            return Err(format!(
                "it is shard {own} of the set {its:?}, and not of {set:?}; correct its URL, or name that set"
            ));
        }
        if own != shard {
            return Err(format!(
                "it is shard {own} of the set {its:?}, and is named as shard {shard}; two URLs are swapped, or two shards \
                 have one store"
            ));
        }
        match self.map() {
            Some(written) if written == *map => Ok(()),
            Some(written) => Err(format!(
                "the set {its:?} was made with the shards {written}, and is named with {map}; all programs must name the same"
            )),
            None => Err("its record cannot be read (a bad map)".to_owned()),
        }
    }
}
