//! The keys of `[store.NAME]`.

/// One store.
pub(crate) const URL: &str = "url";

/// A set of stores.
pub(crate) const SHARDS: &str = "shards";

/// Two stores between which locks move, and the keys of its table.
pub(crate) const MIGRATE: &str = "migrate";
pub(crate) const FROM: &str = "from";
pub(crate) const TO: &str = "to";

/// The store that keeps its record, beside the URL of one that keeps none: a URL, or the name of another store.
pub(crate) const RECORD: &str = "record";

/// What the locks are for.
pub(crate) const PURPOSE: &str = "purpose";

/// The options of a set, which has no URL for them. They are the options of a URL `shards:`.
pub(crate) const OF_A_SET: [&str; 5] = ["key", "set", "prefix", "connect-timeout", "breaker"];

/// The keys of a shard that is written as a table.
pub(crate) const STORE: &str = "store";
pub(crate) const WEIGHT: &str = "weight";

/// The kinds of stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One store.
    One,
    /// Several stores over which names are spread.
    Shards,
    /// Two stores between which locks move.
    Migrate,
}

impl Kind {
    /// The key of this kind.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Self::One => URL,
            Self::Shards => SHARDS,
            Self::Migrate => MIGRATE,
        }
    }

    /// Its options. The others of one store stand in its URL.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            Self::One => &[RECORD],
            Self::Shards => &OF_A_SET,
            // The key determines the shard of a name.
            Self::Migrate => &OF_A_SET[1..],
        }
    }

    /// The keys that these kinds have, for a person.
    pub(crate) fn known(kinds: &[Self]) -> String {
        let own = kinds.iter().map(|kind| kind.key());
        let options = kinds.iter().flat_map(|kind| kind.options().iter().copied());
        let mut keys = Vec::new();
        for key in own.chain([PURPOSE]).chain(options) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.join(", ")
    }
}
