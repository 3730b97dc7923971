//! What a record says, as far as a client needs it: where a name lies, and for how long that may be believed.

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
    pub(crate) times: Times,
}

/// The stores of a name, by their places among the members of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The store that a claim takes first.
    pub(crate) first: usize,
    /// The store that it takes then.
    pub(crate) second: Option<usize>,
    /// The one whose token a new grant has, and that a hold needs. None in the hush: a hold needs both, and nothing is granted.
    pub(crate) counts: Option<usize>,
    /// Whether the name is on its way to another store, so that knowledge carries a new grant only shortly.
    pub(crate) moves: bool,
    /// What tokens of the store that counts (in the hush, of the first one) must be above.
    pub(crate) floor: Token,
}

impl Route {
    /// Its stores, in the order in which they are taken.
    pub(crate) fn stores(self) -> impl DoubleEndedIterator<Item = usize> {
        [Some(self.first), self.second].into_iter().flatten()
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
    /// What a record says that was read and is of a set that moves; none for another.
    pub(crate) fn of(stored: &Stored) -> Option<Self> {
        let maps = stored.maps()?;
        let moving = stored.moving.as_ref()?;
        Some(Self {
            version: stored.version,
            phase: stored.phase(),
            maps,
            floors: moving.floors.clone(),
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
            times: self.times,
        }
    }

    /// The id of the store that says who holds a name. In the hush it is the old one.
    pub(crate) fn counts(&self, name: &LockName) -> &str {
        let [old, new] = self.maps.owners(name.as_str());
        match self.phase >= Phase::BothNew {
            true => new,
            false => old,
        }
    }

    /// Whether this store says who holds some of the names.
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

    /// The route of a name. `place` knows the members by their ids.
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
            floor,
        };
        if old == new {
            // Its tokens go on as they were, and so does its queue.
            return Ok(one(place(old)?, Token(0)));
        }
        let (first, second) = match self.phase {
            Phase::Old => return Ok(one(place(old)?, self.floor(old))),
            Phase::New => return Ok(one(place(new)?, self.floor(new))),
            Phase::BothOld | Phase::Hush | Phase::BothNew => (place(old)?, place(new)?),
        };
        let (counts, floor) = match self.phase {
            Phase::BothOld => (Some(first), self.floor(old)),
            Phase::BothNew => (Some(second), self.floor(new)),
            Phase::Old | Phase::Hush | Phase::New => (None, self.floor(old)),
        };
        Ok(Route {
            first,
            second: Some(second),
            counts,
            moves: true,
            floor,
        })
    }

    /// What a new token of this store must be above, for a name that moves.
    fn floor(&self, shard: &str) -> Token {
        #[cfg(fencelock_planted)]
        if fencelock_core::planted::is("floor-ignored") {
            return Token(0);
        }
        Token(self.floors.get(shard).copied().unwrap_or(0))
    }

    /// For how long knowledge of it carries a hold, counted from before it was read.
    pub(crate) fn carries_hold(&self) -> Duration {
        less_drift(self.times.pace)
    }

    /// The same for a new grant by this route.
    pub(crate) fn carries_grant(&self, route: Route) -> Duration {
        less_drift(match route.moves {
            true => self.times.tight,
            false => self.times.pace,
        })
    }

    /// How often it is to be read.
    pub(crate) fn read_every(&self) -> Duration {
        match self.phase.is_an_end() {
            true => self.times.pace / 3,
            false => self.times.tight / 3,
        }
    }
}

/// A time on this machine's clock that is surely over when `time` is over on another's: clocks run up to 1 % apart, and 2 ms of
/// rounding.
pub(crate) fn less_drift(time: Duration) -> Duration {
    time.saturating_sub(time / 100 + Duration::from_millis(2))
}
