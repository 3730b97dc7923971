//! Holders in one store alone although their name has two stores: a sign of a program that was not switched.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fencelock_core::{ClaimId, Engine, LockName, Result};

use crate::maps::Maps;
use crate::migration::change::Opened;
use crate::migration::floor::PROBE;

/// For how long a normal hold may seem to be in one store alone: its client is about to take the second store, or this process
/// listed one store before the other.
const SHORTLY: Duration = Duration::from_secs(3);

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

/// The holds of names that move, from one listing of all stores. The first store of a name is the one that counts.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) only_first: Vec<Unpaired>,
    pub(crate) only_second: usize,
    pub(crate) both: usize,
}

type Holders = BTreeMap<LockName, Vec<(Option<ClaimId>, String)>>;

async fn holders(engine: &dyn Engine) -> Result<Holders> {
    let mut holders = Holders::new();
    let mut at = None;
    loop {
        let page = engine.inspect().list("", at, 1000).await?;
        for view in page
            .items
            .into_iter()
            .filter(|view| view.name.as_str() != PROBE)
        {
            let of = view.holders.into_iter();
            let of = of.map(|holder| (holder.claim, holder.owner)).collect();
            holders.insert(view.name, of);
        }
        at = page.next;
        if at.is_none() {
            return Ok(holders);
        }
    }
}

/// One listing of all stores. With `new`, the new store of a name counts as its first one.
pub(crate) async fn list(opened: &Opened, maps: &Maps, new: bool) -> Result<Held> {
    let (mut first, mut second) = (Holders::new(), Holders::new());
    for (id, engine) in opened.ids.iter().zip(&opened.engines) {
        for (name, of) in holders(&**engine).await? {
            let [before, after] = maps.owners(name.as_str());
            let of_first = if new { after } else { before } == id;
            if before == after || ![before, after].contains(&id.as_str()) {
                continue;
            }
            let listed = if of_first { &mut first } else { &mut second };
            listed.insert(name, of);
        }
    }
    let mut held = Held::default();
    for (name, holders) in first {
        let mut there = second.remove(&name).unwrap_or_default();
        for (claim, owner) in holders {
            let pair = there
                .iter()
                .position(|(other, _)| claim.is_some() && *other == claim);
            match pair {
                Some(at) => {
                    there.swap_remove(at);
                    held.both += 1;
                }
                None => held.only_first.push(Unpaired {
                    name: name.clone(),
                    owner,
                }),
            }
        }
        held.only_second += there.len();
    }
    held.only_second += second.values().map(Vec::len).sum::<usize>();
    Ok(held)
}

/// What several listings have shown of holders in one store alone.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The last listing.
    pub(crate) held: Held,
    /// Holders that have been in one store alone for longer than [`SHORTLY`], as far as the listings show.
    pub(crate) lingering: Vec<Unpaired>,
}

/// Lists until no holder has been in the first store alone for longer than [`SHORTLY`], and none was for `quiet`; or until
/// `patience` is over. Returns the last listing and those that remain.
pub(crate) async fn lingering(
    opened: &Opened,
    maps: &Maps,
    new: bool,
    quiet: Duration,
    patience: Duration,
) -> Result<Seen> {
    let begun = Instant::now();
    let mut seen: BTreeMap<Unpaired, Instant> = BTreeMap::new();
    let mut clean_since = begun;
    loop {
        let now = Instant::now();
        let held = list(opened, maps, new).await?;
        let found: BTreeSet<_> = held.only_first.iter().cloned().collect();
        seen.retain(|unpaired, _| found.contains(unpaired));
        for unpaired in found {
            seen.entry(unpaired).or_insert(now);
        }
        let (old, young): (Vec<_>, Vec<_>) = seen
            .iter()
            .partition(|(_, since)| now.duration_since(**since) >= SHORTLY);
        if !old.is_empty() {
            clean_since = now;
        }
        // Those who were there at the beginning must be watched for [`SHORTLY`].
        let decided = young.is_empty() || begun.elapsed() >= SHORTLY;
        if old.is_empty() && decided && clean_since.elapsed() >= quiet {
            let lingering = Vec::new();
            return Ok(Seen { held, lingering });
        }
        if !old.is_empty() && begun.elapsed() >= patience.max(SHORTLY) {
            let lingering = old.into_iter().map(|(unpaired, _)| unpaired.clone());
            let lingering = lingering.collect();
            return Ok(Seen { held, lingering });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
