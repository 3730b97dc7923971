//! What a client uses of a record: where a name lies, and for how long it may rely on that.

use std::collections::BTreeMap;
use std::time::Duration;

use fencelock_core::{LockName, Token};

use crate::maps::Maps;
use crate::phase::Phase;
use crate::stored::Stored;
use crate::times::Times;

/// One version of the record.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) version: u64,
    pub(crate) phase: Phase,
    maps: Maps,
    floors: BTreeMap<String, u64>,
    /// The floor of the hush before the last one.
    floor_before: Token,
    drawn: BTreeMap<String, u64>,
    /// Whether the new map counts, or has counted until the hush.
    new_counts: bool,
    /// In the hush: a lost record may have let the other map count.
    is_unsure: bool,
    pub(crate) times: Times,
}

/// The stores of a name, by their places among the members of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The store that a claim takes first.
    pub(crate) first: usize,
    /// The store that it takes second.
    pub(crate) second: Option<usize>,
    /// The store that counts: a new grant has its token, and a hold needs it. `None` in the hush: nothing is granted, and a
    /// hold needs both stores.
    pub(crate) counts: Option<usize>,
    /// Whether the name is moving to another store. Then knowledge carries a new grant only for the short time `tight`.
    pub(crate) moves: bool,
    /// The store that counts, or has counted until the hush.
    pub(crate) latest: usize,
    /// Its new tokens must be above this.
    pub(crate) floor: Token,
    /// The tokens that the other store of a move gave while it counted: above the first of these, and at most the second one.
    before: (Token, Token),
    /// A lost record may have let either store count, so nobody but the holder knows its token.
    is_unsure: bool,
}

impl Route {
    /// The stores, in the order in which claims take them.
    pub(crate) fn stores(self) -> impl DoubleEndedIterator<Item = usize> {
        [Some(self.first), self.second].into_iter().flatten()
    }

    /// The store of a move that does not count for this name.
    pub(crate) fn other(self) -> Option<usize> {
        self.second?;
        self.stores().find(|store| *store != self.latest)
    }

    /// The token that a holder uses, by those of its claim in the store that counts and in the other one. A claim that was granted
    /// before the last hush has its token from the other store. If the other store has granted the claim anew since, or has not
    /// got it, nobody but the holder knows its token.
    pub(crate) fn token_of_holder(self, own: Option<Token>, other: Option<Token>) -> Option<Token> {
        if self.is_unsure {
            return None;
        }
        let granted_before = |token: &Token| *token > self.before.0 && *token <= self.before.1;
        own.filter(|own| *own > self.floor)
            .or(other.filter(granted_before))
    }

    pub(crate) fn has(self, store: usize) -> bool {
        self.stores().any(|of| of == store)
    }

    /// Whether a hold needs this store.
    pub(crate) fn needs(self, store: usize) -> bool {
        match self.counts {
            Some(counts) => counts == store,
            None => self.has(store),
        }
    }
}

impl Known {
    /// What a client uses of this record; `None` if it is not the record of a set that moves.
    pub(crate) fn of(stored: &Stored) -> Option<Self> {
        let maps = stored.maps()?;
        let moving = stored.moving.as_ref()?;
        Some(Self {
            version: stored.version,
            phase: stored.phase(),
            maps,
            floors: moving.floors.clone(),
            floor_before: Token(moving.taken[0]),
            drawn: moving.drawn.clone(),
            new_counts: stored.new_counts(),
            is_unsure: stored.phase() == Phase::Hush && moving.floor_due,
            times: stored.times()?,
        })
    }

    #[cfg(fencelock_planted)]
    pub(crate) fn as_old(&self) -> Self {
        Self {
            version: self.version,
            phase: Phase::Old,
            maps: self.maps.clone(),
            floors: self.floors.clone(),
            floor_before: self.floor_before,
            drawn: self.drawn.clone(),
            new_counts: false,
            is_unsure: false,
            times: self.times,
        }
    }

    /// The id of the store that counts for a name: its holders are the lock's. In the hush it is the old store.
    pub(crate) fn counts(&self, name: &LockName) -> &str {
        let [old, new] = self.maps.owners(name.as_str());
        match self.phase >= Phase::BothNew {
            true => new,
            false => old,
        }
    }

    /// Whether this store counts for some names.
    pub(crate) fn is_counted(&self, shard: &str) -> bool {
        let map = match self.phase >= Phase::BothNew {
            true => &self.maps.new,
            false => &self.maps.old,
        };
        map.weight(shard).is_some()
    }

    /// Whether some names need this store.
    pub(crate) fn is_used(&self, shard: &str) -> bool {
        let Maps { old, new, .. } = &self.maps;
        let has = [old, new].map(|map| map.weight(shard).is_some());
        match self.phase {
            Phase::Old => has[0],
            Phase::New => has[1],
            Phase::BothOld | Phase::Hush | Phase::BothNew => has[0] || has[1],
        }
    }

    /// The route of a name. `place` gives a member's place by its id.
    pub(crate) fn route<E>(
        &self,
        name: &LockName,
        place: impl Fn(&str) -> Result<usize, E>,
    ) -> Result<Route, E> {
        let [old, new] = self.maps.owners(name.as_str());
        let one = |first, floor| Route {
            first,
            second: None,
            counts: Some(first),
            moves: false,
            latest: first,
            floor,
            before: (Token(0), Token(0)),
            is_unsure: false,
        };
        if old == new {
            // Its tokens and its queue stay as they were.
            return Ok(one(place(old)?, Token(0)));
        }
        let (first, second) = match self.phase {
            Phase::Old => return Ok(one(place(old)?, self.floor(old))),
            Phase::New => return Ok(one(place(new)?, self.floor(new))),
            Phase::BothOld | Phase::Hush | Phase::BothNew => (place(old)?, place(new)?),
        };
        let (latest, floor, other) = match self.new_counts {
            false => (first, self.floor(old), new),
            true => (second, self.floor(new), old),
        };
        Ok(Route {
            first,
            second: Some(second),
            counts: (self.phase != Phase::Hush).then_some(latest),
            moves: true,
            latest,
            floor,
            before: (self.floor_before, self.drawn(other)),
            is_unsure: self.is_unsure,
        })
    }

    /// New tokens of this store must be above this, for a name that moves.
    fn floor(&self, shard: &str) -> Token {
        #[cfg(fencelock_planted)]
        if fencelock_core::planted::is("floor-ignored") {
            return Token(0);
        }
        Token(self.floors.get(shard).copied().unwrap_or(0))
    }

    /// What no token of this store was above in the last hush.
    fn drawn(&self, shard: &str) -> Token {
        Token(self.drawn.get(shard).copied().unwrap_or(0))
    }

    /// For how long knowledge carries a hold, counted from before the record was read.
    pub(crate) fn carries_hold(&self) -> Duration {
        less_drift(self.times.pace)
    }

    /// For how long knowledge carries a new grant by this route, counted in the same way.
    pub(crate) fn carries_grant(&self, route: Route) -> Duration {
        less_drift(match route.moves {
            true => self.times.tight,
            false => self.times.pace,
        })
    }

    /// How often the record must be read.
    pub(crate) fn read_every(&self) -> Duration {
        match self.phase.is_an_end() {
            true => self.times.pace / 3,
            false => self.times.tight / 3,
        }
    }
}

/// A duration that is over on this machine's clock before `time` is over on any other machine's. Clocks differ by up to 1 %, and
/// rounded times by up to 2 ms.
pub(crate) fn less_drift(time: Duration) -> Duration {
    time.saturating_sub(time / 100 + Duration::from_millis(2))
}
