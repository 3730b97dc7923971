//! The keys of `[store.NAME]`.

/// A store itself.
pub(crate) const URL: &str = "url";

/// A set of stores.
pub(crate) const SHARDS: &str = "shards";

/// What the locks are for.
pub(crate) const PURPOSE: &str = "purpose";

/// The options of a set, which has no URL for them. They are those of a URL `shards:`.
pub(crate) const OF_A_SET: [&str; 5] = ["key", "set", "prefix", "connect-timeout", "breaker"];

/// The keys of a shard that is written as a table.
pub(crate) const STORE: &str = "store";
pub(crate) const WEIGHT: &str = "weight";

/// The keys that a store of this kind has, for a person.
pub(crate) fn known(set: bool) -> String {
    let own = [if set { SHARDS } else { URL }, PURPOSE];
    let of_a_set: &[&str] = if set { &OF_A_SET } else { &[] };
    [&own, of_a_set].concat().join(", ")
}
