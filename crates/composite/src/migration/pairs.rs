//! Holders in one store alone although their name has two stores: a sign of a program that was not switched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fencelock_core::engine::HolderView;
use fencelock_core::{ClaimId, Engine, LockName, Result};

use crate::maps::Maps;
use crate::migration::change::Opened;
use crate::migration::floor::PROBE;

/// For how long a normal hold may seem to be in one store alone: its client is about to take the second store, or this process
/// listed one store before the other.
const SHORTLY: Duration = Duration::from_secs(3);

/// For how long a normal hold is hardly ever in one store alone.
const A_MOMENT: Duration = Duration::from_millis(200);

/// How many holders are looked at after [`A_MOMENT`].
const LOOKS: usize = 20;

/// The pause between two listings.
const PAUSE: Duration = Duration::from_secs(1);

/// A holder without its claim in the other store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Unpaired {
    /// The lock.
    pub name: LockName,
    /// The owner's text, or what another program has written in its place.
    pub owner: String,
}

/// A holder in one store alone. Each hold of a program is another one, if it has a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Alone {
    side: Side,
    of: Unpaired,
    claim: Option<ClaimId>,
}

/// The holds of names that move, from one listing of all stores.
#[derive(Debug, Default)]
pub(crate) struct Held {
    alone: Vec<Alone>,
    both: usize,
}

impl Held {
    /// How many are in the old store only, in the new one only, and in both.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        let old = self.alone.iter().filter(|alone| alone.side == Side::Old);
        let old = old.count();
        (old, self.alone.len() - old, self.both)
    }

    fn add(&mut self, side: Side, name: &LockName, claim: Option<ClaimId>, owner: String) {
        let name = name.clone();
        let of = Unpaired { name, owner };
        self.alone.push(Alone { side, of, claim });
    }
}

/// What one store lists of a name.
#[derive(Debug, Default)]
struct Listed {
    holders: Vec<(Option<ClaimId>, String)>,
    /// The owners of those that wait there.
    waiters: Vec<String>,
}

type Names = BTreeMap<LockName, Listed>;

async fn names(engine: &dyn Engine) -> Result<Names> {
    let mut names = Names::new();
    let mut at = None;
    loop {
        let page = engine.inspect().list("", at, 1000).await?;
        let views = page.items.into_iter();
        for view in views.filter(|view| view.name.as_str() != PROBE) {
            let holders = view.holders.into_iter();
            let holders = holders.map(|holder| (holder.claim, holder.owner)).collect();
            let waiters = view
                .waiters
                .into_iter()
                .map(|waiter| waiter.owner)
                .collect();
            names.insert(view.name, Listed { holders, waiters });
        }
        at = page.next;
        if at.is_none() {
            return Ok(names);
        }
    }
}

/// One of the two stores of a name that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Old,
    New,
}

/// What several listings have shown of holders in one store alone.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The last listing.
    pub(crate) held: Held,
    /// Holders that have been in one store alone for longer than a normal hold, as far as the listings show.
    pub(crate) lingering: Vec<Unpaired>,
}

/// The holders of names that move, in the stores of these sides alone.
pub(crate) struct Pairs<'a> {
    pub(crate) opened: &'a Opened,
    pub(crate) maps: &'a Maps,
    pub(crate) sides: &'a [Side],
}

impl Pairs<'_> {
    /// Lists until no holder has been in a store of these sides alone for longer than [`SHORTLY`], and none was for `quiet`; or
    /// until `patience` is over. Returns the last listing and those that remain.
    ///
    /// During `quiet` a hold counts that is in one store alone for longer than [`A_MOMENT`]: a program that was not switched may
    /// hold its lock only shortly.
    ///
    /// It calls `waits` once if it waits for some.
    pub(crate) async fn lingering(
        &self,
        quiet: Duration,
        patience: Duration,
        waits: &(dyn Fn(&[Unpaired]) + Send + Sync),
    ) -> Result<Seen> {
        let begun = Instant::now();
        let mut seen: BTreeMap<Alone, Instant> = BTreeMap::new();
        let (mut clean_since, mut told) = (begun, false);
        let mut now = begun;
        loop {
            let held = self.list().await?;
            let found = held
                .alone
                .iter()
                .filter(|alone| self.sides.contains(&alone.side));
            let found: BTreeSet<_> = found.cloned().collect();
            seen.retain(|alone, _| found.contains(alone));
            let mut new = found;
            new.retain(|alone| !seen.contains_key(alone));
            let mut lingering = match quiet.is_zero() {
                true => Vec::new(),
                false => self.stay_alone(&new).await?,
            };
            // Those who were there at the beginning must be watched for [`SHORTLY`].
            let mut decided = true;
            seen.extend(new.into_iter().map(|alone| (alone, now)));
            for (alone, since) in &seen {
                match now.duration_since(*since) >= SHORTLY {
                    true => lingering.push(alone.of.clone()),
                    false => decided &= *since != begun,
                }
            }
            if !lingering.is_empty() {
                clean_since = now;
            }
            let is_clean = lingering.is_empty() && decided && clean_since.elapsed() >= quiet;
            let is_over = !lingering.is_empty() && begun.elapsed() >= patience.max(SHORTLY);
            if is_clean || is_over {
                return Ok(Seen { held, lingering });
            }
            if !lingering.is_empty() && !std::mem::replace(&mut told, true) {
                waits(&lingering);
            }
            tokio::time::sleep(PAUSE).await;
            now = Instant::now();
        }
    }

    /// Which of these holders are in one store alone a moment later, too. It looks at a few only: one is enough. Those without
    /// a claim use another library. The others are drawn at random, so that no busy name hides another one.
    async fn stay_alone(&self, found: &BTreeSet<Alone>) -> Result<Vec<Unpaired>> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        tokio::time::sleep(A_MOMENT).await;
        let mut stay = Vec::new();
        let mut found: Vec<_> = found.iter().collect();
        fastrand::shuffle(&mut found);
        found.sort_by_key(|alone| alone.claim.is_some());
        for Alone { side, of, claim } in found.into_iter().take(LOOKS) {
            let [old, new] = self.maps.owners(of.name.as_str());
            let (own, other) = match side {
                Side::Old => (old, new),
                Side::New => (new, old),
            };
            let holds = async |id: &str| -> Result<bool> {
                let view = self.opened.at(id)?.inspect().look(&of.name).await?;
                let same = |holder: &HolderView| match claim {
                    Some(claim) => holder.claim == Some(*claim),
                    None => holder.owner == of.owner,
                };
                Ok(view.holders.iter().any(same))
            };
            if holds(own).await? && !holds(other).await? {
                stay.push(of.clone());
            }
        }
        Ok(stay)
    }

    /// One listing of all stores.
    async fn list(&self) -> Result<Held> {
        let (mut old, mut new) = (Names::new(), Names::new());
        for (id, engine) in self.opened.ids.iter().zip(&self.opened.engines) {
            for (name, of) in names(&**engine).await? {
                let listed = match self.maps.owners(name.as_str()) {
                    [before, after] if before == after => continue,
                    [before, _] if before == id => &mut old,
                    [_, after] if after == id => &mut new,
                    _ => continue,
                };
                listed.insert(name, of);
            }
        }
        let mut held = Held::default();
        for (name, listed) in old {
            let there = new.entry(name.clone()).or_default();
            for (claim, owner) in listed.holders {
                let pair = there
                    .holders
                    .iter()
                    .position(|(other, _)| claim.is_some() && *other == claim);
                match pair {
                    Some(at) => {
                        there.holders.swap_remove(at);
                        held.both += 1;
                    }
                    // It has taken the old store, and waits for the new one.
                    None if there.waiters.contains(&owner) => {}
                    None => held.add(Side::Old, &name, claim, owner),
                }
            }
        }
        for (name, listed) in new {
            for (claim, owner) in listed.holders {
                held.add(Side::New, &name, claim, owner);
            }
        }
        Ok(held)
    }
}
