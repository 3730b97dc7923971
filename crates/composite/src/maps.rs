//! The two maps of a change: where each name lies before and after it.

use std::fmt;

use fencelock_core::{Error, Result};

use crate::map::Map;

/// The old and the new map of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maps {
    pub(crate) old: Map,
    pub(crate) new: Map,
    /// The names of the sets of shards before and after the change. `None` for a move between two single stores.
    pub(crate) sets: Option<[String; 2]>,
}

impl Maps {
    /// # Errors
    /// [`Error::Invalid`] for maps between which names cannot move.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { old, new, .. } = self;
        let refuse = |what: String, why: &str| Err(Error::invalid("change of shards", what, why));
        let both = || format!("{old} -> {new}");
        if old.key() != new.key() {
            return refuse(
                both(),
                "both sets must have the same key rule; give them the same key=",
            );
        }
        for (id, weight) in old.shards() {
            if new.weight(id).is_some_and(|other| other != weight) {
                let why = "a shard that stays keeps its weight; add a shard, or remove one";
                return refuse(format!("{id} ({})", both()), why);
            }
        }
        match old == new {
            true => refuse(
                both(),
                "both sets have the same shards; add a shard to the new one, or leave one out",
            ),
            false => Ok(()),
        }
    }

    /// The ids of the stores of a name in the old and in the new map.
    pub(crate) fn owners(&self, name: &str) -> [&str; 2] {
        [self.old.shard_of(name), self.new.shard_of(name)]
    }

    /// The shards that only the new map has.
    pub(crate) fn added(&self) -> Vec<&str> {
        only(&self.new, &self.old)
    }

    /// The shards to which the names that move belong, before the change or, with `new`, after it.
    pub(crate) fn owners_of_moved(&self, new: bool) -> Vec<&str> {
        let (of, other) = match new {
            true => (&self.new, &self.old),
            false => (&self.old, &self.new),
        };
        // The shards that stay keep their weights, so no name moves from one of them to another.
        match only(other, of).is_empty() {
            true => only(of, other),
            false => of.shards().map(|(id, _)| id).collect(),
        }
    }
}

impl fmt::Display for Maps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { old, new, sets } = self;
        match sets {
            None => write!(f, "{old} -> {new}"),
            Some([before, after]) => write!(f, "{before} ({old}) -> {after} ({new})"),
        }
    }
}

/// The shards of one map that another map does not have.
fn only<'a>(of: &'a Map, other: &Map) -> Vec<&'a str> {
    let ids = of.shards().map(|(id, _)| id);
    ids.filter(|id| other.weight(id).is_none()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::KeyRule;

    fn maps(old: &[(&str, u8)], new: &[(&str, u8)]) -> Maps {
        let map =
            |shards: &[(&str, u8)]| Map::new(shards.iter().copied(), KeyRule::default()).unwrap();
        Maps {
            old: map(old),
            new: map(new),
            sets: None,
        }
    }

    /// What `owners_of_moved` should return, found by trying many names.
    fn owners_seen(maps: &Maps, new: bool) -> Vec<&str> {
        let names: Vec<_> = (0..2000).map(|n| format!("name/{n}")).collect();
        let owners = names.iter().map(|name| maps.owners(name));
        let moved = owners.filter(|[old, new]| old != new);
        let mut seen: Vec<_> = moved.map(|owners| owners[usize::from(new)]).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn the_owners_of_names_that_move_are_those_of_many_names() {
        let (two, three) = ([("a", 1), ("b", 2)], [("a", 1), ("b", 2), ("c", 1)]);
        for maps in [
            maps(&two, &three),
            maps(&three, &two),
            maps(&two, &[("b", 2), ("c", 1)]),
            maps(&[("from", 1)], &[("to", 1)]),
        ] {
            assert!(maps.check().is_ok());
            for new in [false, true] {
                assert_eq!(
                    maps.owners_of_moved(new),
                    owners_seen(&maps, new),
                    "{maps:?}"
                );
            }
        }
    }

    #[test]
    fn maps_between_which_names_cannot_move_are_refused() {
        let same = maps(&[("a", 1)], &[("a", 1)]).check().unwrap_err();
        assert!(same.to_string().contains("same shards"), "{same}");
        let heavier = maps(&[("a", 1), ("b", 1)], &[("a", 2), ("b", 1), ("c", 1)]);
        let heavier = heavier.check().unwrap_err();
        assert!(
            heavier.to_string().contains("keeps its weight"),
            "{heavier}"
        );
        let mut other = maps(&[("a", 1)], &[("a", 1), ("b", 1)]);
        other.new = Map::new([("a", 1), ("b", 1)], KeyRule::Slash).unwrap();
        let other = other.check().unwrap_err();
        assert!(other.to_string().contains("key rule"), "{other}");
    }
}
