//! The format of the record in each store of a set.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use fencelock_core::{Error, Result, Token};
use serde::{Deserialize, Serialize};

use crate::map::{KeyRule, Map};
use crate::maps::Maps;
use crate::phase::Phase;
use crate::promises::Promised;
use crate::times::Times;

/// The kind of a record whose map does not change: programs read it once.
const ROUTED: &str = "routed";

/// The kind of a record whose map may change: programs read it again and again.
const MOVING: &str = "moving";

/// The kind of a record whose set is no more: programs use the store by itself. The other fields are those of its last record.
const DISSOLVED: &str = "dissolved";

/// See [`given_since`]. The clocks of administrators may differ by this.
const ROOM: Duration = Duration::from_secs(24 * 3600);

/// After the loss of the arbiter's record, one version is left out: some program may know it from the lost record.
pub(crate) const AFTER_LOSS: u64 = 2;

/// The record of one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    /// The name of the set.
    pub(crate) set: String,
    /// The id of this store in it.
    #[serde(rename = "self")]
    pub(crate) shard: String,
    /// Grows by one with each change, and by more after the loss of a record.
    pub(crate) version: u64,
    kind: String,
    phase: u32,
    key: String,
    old: Shards,
    pub(crate) promises: Promised,
    /// Only in a record whose map may change.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub(crate) moving: Option<Moving>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Shards {
    /// Where shards are added or removed: the name of the set with these shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set: Option<String>,
    shards: BTreeMap<String, u8>,
}

/// The part of the record that only sets with a changing map have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moving {
    new: Shards,
    /// For how long knowledge of the record carries a hold.
    pace_ms: u64,
    /// For how long knowledge of the record carries a new grant while a change is under way.
    tight_ms: u64,
    /// The longest lock-delay of a claim.
    lock_delay_ms: u64,
    /// By shard: since the last hush, tokens that count are above this.
    #[serde(default)]
    pub(crate) floors: BTreeMap<String, u64>,
    /// The floors that the last two hushes took, the last one second. A shard may count for some names before the change and for
    /// others after it, so [`Moving::floors`] does not tell which tokens it gave before the last hush.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) taken: [u64; 2],
    /// By shard: what no token of it was above in the last hush.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) drawn: BTreeMap<String, u64>,
    /// When the first of these floors was taken, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) floors_at: Option<u64>,
    /// In the hush: the phase before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hush_from: Option<u32>,
    /// The end of the hush takes a floor in any case: a record was lost that may have been that end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) floor_due: bool,
    /// In the first phase: the new store no longer belongs to the set.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) given_back: bool,
    /// Who wrote it, for people.
    pub(crate) by: String,
    /// When, in seconds since 1970, for people.
    pub(crate) at: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(floors: &[u64; 2]) -> bool {
    *floors == [0, 0]
}

/// Whether a record of this version was restored from a backup, if another store has one of version `newest`. A step that was
/// interrupted leaves no such difference.
pub(crate) const fn is_outdated(version: u64, newest: u64) -> bool {
    version + AFTER_LOSS < newest
}

/// More tokens than a store can have given since then: four per microsecond, and as many as in [`ROOM`] besides. No store is known
/// to give one per microsecond.
fn given_since(then: u64) -> u64 {
    let since = Duration::from_secs(now().saturating_sub(then));
    let tokens = u64::try_from((since + ROOM).as_micros()).unwrap_or(u64::MAX);
    tokens.saturating_mul(4)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Shards {
    fn of(map: &Map) -> Self {
        let shards = map.shards().map(|(id, weight)| (id.to_owned(), weight));
        let (set, shards) = (None, shards.collect());
        Self { set, shards }
    }
}

impl Stored {
    /// The first record of a store, in a new set whose map does not change.
    pub(crate) fn first(set: &str, shard: &str, map: &Map, promises: Promised) -> Self {
        Self {
            set: set.to_owned(),
            shard: shard.to_owned(),
            version: 1,
            kind: ROUTED.to_owned(),
            phase: 0,
            key: map.key().as_str().to_owned(),
            old: Shards::of(map),
            promises,
            moving: None,
        }
    }

    /// The first record of a store, in a set that moves from one map to another.
    pub(crate) fn first_moving(
        set: &str,
        maps: &Maps,
        promises: Promised,
        times: Times,
        by: &str,
    ) -> Self {
        let named = |at: usize, map: &Map| Shards {
            set: maps.sets.as_ref().map(|sets| sets[at].clone()),
            ..Shards::of(map)
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            kind: MOVING.to_owned(),
            old: named(0, &maps.old),
            moving: Some(Moving {
                new: named(1, &maps.new),
                pace_ms: millis(times.pace),
                tight_ms: millis(times.tight),
                lock_delay_ms: millis(times.lock_delay),
                floors: BTreeMap::new(),
                taken: [0, 0],
                drawn: BTreeMap::new(),
                floors_at: None,
                hush_from: None,
                floor_due: false,
                given_back: false,
                by: by.to_owned(),
                at: 0,
            }),
            ..Self::first(set, "", &maps.old, promises)
        }
    }

    /// Takes over the floor of a shard from its last record, for the case that it loses its counter.
    pub(crate) fn go_on_above(&mut self, shard: &str, last: &Self) {
        let floor = last.floor(&last.shard);
        if let (Some(moving), Some(before)) = (&mut self.moving, &last.moving)
            && floor > Token(0)
        {
            moving.floors.insert(shard.to_owned(), floor.get());
            let earlier = [moving.floors_at, before.floors_at];
            moving.floors_at = earlier.into_iter().flatten().min();
        }
    }

    pub(crate) fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::internal(&self.set, error.to_string()))
    }

    /// The same record for another store.
    pub(crate) fn of_shard(&self, shard: &str) -> Self {
        let shard = shard.to_owned();
        Self {
            shard,
            ..self.clone()
        }
    }

    /// # Errors
    /// Why this version cannot use the text, as words.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let read = serde_json::from_str::<Self>(text);
        let stored = read.map_err(|error| {
            format!(
                "its record cannot be read ({error}); use a newer fencelock, or restore the record"
            )
        })?;
        let known = match (stored.kind.as_str(), &stored.moving) {
            (ROUTED, None) => stored.phase == 0,
            (MOVING, Some(_)) | (DISSOLVED, _) => Phase::from_number(stored.phase).is_some(),
            _ => false,
        };
        match known {
            true => Ok(stored),
            false => Err("its record is of a newer fencelock; use that version".to_owned()),
        }
    }

    /// The phase of the change.
    pub(crate) fn phase(&self) -> Phase {
        // Other numbers were refused by `parse`.
        Phase::from_number(self.phase).unwrap_or(Phase::Hush)
    }

    /// Whether the new store no longer belongs to the set.
    pub(crate) fn is_given_back(&self) -> bool {
        let moving = self.moving.as_ref();
        moving.is_some_and(|moving| moving.given_back)
    }

    /// The next record, with this phase.
    pub(crate) fn next(&self, phase: Phase) -> Self {
        Self {
            version: self.version + 1,
            phase: phase.number(),
            ..self.clone()
        }
    }

    /// The record with which the set ends.
    pub(crate) fn dissolved(&self, by: &str) -> Self {
        let mut ended = Self {
            kind: DISSOLVED.to_owned(),
            ..self.next(self.phase())
        };
        ended.sign(by);
        ended
    }

    /// Notes who writes the record, and when.
    pub(crate) fn sign(&mut self, by: &str) {
        if let Some(moving) = &mut self.moving {
            by.clone_into(&mut moving.by);
            moving.at = now();
        }
    }

    fn is_dissolved(&self) -> bool {
        self.kind == DISSOLVED
    }

    /// Whether this set, in which the store had this id, was dissolved.
    pub(crate) fn was_dissolved_as(&self, set: &str, shard: &str) -> bool {
        let sets = self.maps().and_then(|maps| maps.sets);
        let named = self.set == set || sets.is_some_and(|[_, after]| after == set);
        self.is_dissolved() && self.shard == shard && named
    }

    /// Why the set of this record still needs more than one store; `None` if it does not.
    pub(crate) fn unfinished(&self) -> Option<String> {
        match self.phase() {
            Phase::New => None,
            _ if self.moving.is_none() => None,
            phase => Some(format!(
                "the set {:?} is in phase {phase}; go on with `fencelock migrate finish` until the new store is alone",
                self.set
            )),
        }
    }

    /// The floor of a shard: since the last hush, its tokens are above this.
    pub(crate) fn floor(&self, shard: &str) -> Token {
        let moving = self.moving.as_ref();
        Token(
            moving
                .and_then(|moving| moving.floors.get(shard).copied())
                .unwrap_or(0),
        )
    }

    /// Whether the new map counts, or has counted until the hush.
    pub(crate) fn new_counts(&self) -> bool {
        let moving = self.moving.as_ref();
        let before = moving.and_then(|moving| moving.hush_from);
        before.and_then(Phase::from_number).unwrap_or(self.phase()) >= Phase::BothNew
    }

    /// Whether this shard counts for some names, or has counted until the hush.
    pub(crate) fn counts_in(&self, shard: &str) -> bool {
        let counting = match &self.moving {
            Some(moving) if self.new_counts() => &moving.new,
            _ => &self.old,
        };
        counting.shards.contains_key(shard)
    }

    /// The floor of a shard that has lost its counter: above all tokens that it may have given since its floor was taken.
    pub(crate) fn floor_after_loss(&self, shard: &str) -> Token {
        let given = match &self.moving {
            Some(moving) => given_since(moving.floors_at.unwrap_or(moving.at)),
            None => 0,
        };
        Token(self.floor(shard).get().saturating_add(given))
    }

    /// How far the end of the hush raises the tokens besides. If the record of that end was lost together with the counter,
    /// tokens above its floor may have been given.
    pub(crate) fn room_for_lost(&self) -> u64 {
        match &self.moving {
            Some(moving) if moving.floor_due => given_since(moving.at),
            _ => 0,
        }
    }

    /// The old map; `None` if it is wrong.
    fn map(&self) -> Option<Map> {
        self.map_of(&self.old)
    }

    fn map_of(&self, shards: &Shards) -> Option<Map> {
        let key = KeyRule::from_text(&self.key)?;
        let shards = shards.shards.iter();
        let shards = shards.map(|(id, weight)| (id.as_str(), *weight));
        Map::new(shards, key).ok()
    }

    /// The old and the new map; `None` for a record whose map does not change, or a wrong one.
    pub(crate) fn maps(&self) -> Option<Maps> {
        let new = &self.moving.as_ref()?.new;
        let sets = self.old.set.clone().zip(new.set.clone());
        Some(Maps {
            old: self.map()?,
            new: self.map_of(new)?,
            sets: sets.map(|(old, new)| [old, new]),
        })
    }

    /// How long knowledge of the record carries; `None` for a record whose map does not change.
    pub(crate) fn times(&self) -> Option<Times> {
        let moving = self.moving.as_ref()?;
        Some(Times {
            pace: Duration::from_millis(moving.pace_ms),
            tight: Duration::from_millis(moving.tight_ms),
            lock_delay: Duration::from_millis(moving.lock_delay_ms),
        })
    }

    /// # Errors
    /// Why a program may not use this store as this shard of a set whose map does not change. While shards are added or
    /// removed, it may do so only before the change has begun (the old set) and after its end (the new set).
    pub(crate) fn check(&self, set: &str, shard: &str, map: &Map) -> Result<(), String> {
        let Some(Maps { old, new, sets }) = self.maps() else {
            return self.check_fixed(set, shard, map);
        };
        let Some(sets) = sets else {
            self.check_shard(set, shard)?;
            return Err(format!(
                "the set {set:?} moves from one store to another; open it as migrate:?…"
            ));
        };
        if !sets.iter().any(|of| of == set) {
            // The set that makes the change has no map of its own.
            self.check_shard(set, shard)?;
            return Err(format!(
                "the set {set:?} changes the shards of the set {:?}; open it as migrate:?…",
                sets[0]
            ));
        }
        self.check_shard(&self.set, shard)?;
        let alone = match self.phase() {
            Phase::Old => Some((&sets[0], &old)),
            Phase::New => Some((&sets[1], &new)),
            Phase::BothOld | Phase::Hush | Phase::BothNew => None,
        };
        match alone {
            Some((of, its)) if of == set && its == map => Ok(()),
            _ => Err(format!(
                "its set has other shards, or gets others now ({old} -> {new}, phase {}); open the set {:?} that changes them, \
                 as migrate:?…",
                self.phase(),
                self.set
            )),
        }
    }

    /// # Errors
    /// How this differs from the record of this shard of a set whose map does not change.
    pub(crate) fn check_fixed(&self, set: &str, shard: &str, map: &Map) -> Result<(), String> {
        self.check_shard(set, shard)?;
        if self.moving.is_some() {
            return Err(format!(
                "the shards of the set {set:?} are being changed; open it as migrate:?…"
            ));
        }
        match self.map() {
            Some(written) if written == *map => Ok(()),
            Some(written) => Err(format!(
                "the set {set:?} was made with the shards {written}, and this program names {map}; all programs must name the same"
            )),
            None => Err("its record cannot be read (a bad map); use a newer fencelock, or restore the record".to_owned()),
        }
    }

    /// # Errors
    /// How this differs from the record of this store of a set that moves between these maps.
    pub(crate) fn check_moving(
        &self,
        set: &str,
        shard: &str,
        ids: &[String],
    ) -> Result<(), String> {
        self.check_shard(set, shard)?;
        let Some(Maps { old, new, .. }) = self.maps() else {
            return Err(format!(
                "the set {set:?} was made as shards:?…, and its map stays as it is; open it as that"
            ));
        };
        let mut named = old.shards().chain(new.shards()).map(|(id, _)| id);
        match named.find(|id| !ids.iter().any(|known| known == id)) {
            None => Ok(()),
            Some(id) => Err(format!(
                "the record of the set {set:?} names the store {id}, and this program does not; all programs must name the same stores"
            )),
        }
    }

    /// The record of this store in this change.
    ///
    /// # Errors
    /// Why this version cannot use the text, or how it differs from such a record.
    pub(crate) fn parse_change(
        text: &str,
        set: &str,
        shard: &str,
        maps: &Maps,
    ) -> Result<Self, String> {
        let stored = Self::parse(text)?;
        stored.check_change(set, shard, maps)?;
        Ok(stored)
    }

    /// # Errors
    /// How this differs from the record of this store in this change. Its steps depend on both maps.
    pub(crate) fn check_change(&self, set: &str, shard: &str, maps: &Maps) -> Result<(), String> {
        let named = maps.old.shards().chain(maps.new.shards());
        let ids: Vec<_> = named.map(|(id, _)| id.to_owned()).collect();
        self.check_moving(set, shard, &ids)?;
        match self.maps() {
            Some(own) if own == *maps => Ok(()),
            Some(own) => Err(format!(
                "the set {set:?} makes the change {own}, and not {maps}; name that one, or give the other change a name of its own"
            )),
            None => Err("its record cannot be read (bad maps); use a newer fencelock, or restore the record".to_owned()),
        }
    }

    fn check_shard(&self, set: &str, shard: &str) -> Result<(), String> {
        let Self {
            set: its,
            shard: own,
            ..
        } = self;
        if self.is_dissolved() {
            return Err(format!(
                "it belongs to no set any more: the set {its:?} was dissolved, and programs use this store by its own URL \
                 (or make a new set)"
            ));
        }
        if its != set {
            return Err(format!(
                "it is shard {own} of the set {its:?}, and not of {set:?}; correct its URL, or name that set"
            ));
        }
        if own != shard {
            return Err(format!(
                "it is shard {own} of the set {its:?}, and this program names it as shard {shard}; two URLs are swapped, or two shards have one store"
            ));
        }
        Ok(())
    }
}

/// The record of a set that was dissolved, if this is one.
pub(crate) fn dissolved(text: &str) -> Option<Stored> {
    Stored::parse(text).ok().filter(Stored::is_dissolved)
}

/// Whether a set with this record uses the store now, or may do so after its next step. Another set must not use the store then.
///
/// ```
/// assert!(fencelock_composite::uses_store("nonsense"));
/// ```
#[must_use]
pub fn uses_store(record: &str) -> bool {
    let Ok(stored) = Stored::parse(record) else {
        return true;
    };
    let (shard, old) = (&stored.shard, &stored.old.shards);
    match (&stored.moving, stored.phase()) {
        _ if stored.is_dissolved() => false,
        (Some(moving), Phase::New) => moving.new.shards.contains_key(shard),
        (Some(moving), Phase::Old) => old.contains_key(shard) || !moving.given_back,
        _ => true,
    }
}

/// Whether programs may use the store with this record by itself. They may before a move has begun, after it is over, after the
/// store was given back, and after the set was dissolved. So you can switch the programs one after the other.
///
/// ```
/// assert!(!fencelock_composite::may_stand_alone("nonsense"));
/// ```
#[must_use]
pub fn may_stand_alone(record: &str) -> bool {
    let Ok(stored) = Stored::parse(record) else {
        return false;
    };
    if stored.is_dissolved() {
        return true;
    }
    let Some(Maps { old, new, .. }) = stored.maps() else {
        return false;
    };
    let alone = |map: &Map| map.shards().map(|(id, _)| id).eq([stored.shard.as_str()]);
    match stored.phase() {
        Phase::Old => alone(&old) || stored.is_given_back() && old.weight(&stored.shard).is_none(),
        Phase::New => alone(&new),
        Phase::BothOld | Phase::Hush | Phase::BothNew => false,
    }
}
