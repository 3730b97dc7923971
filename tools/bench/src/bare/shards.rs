//! How a set distributes names over its stores, for the bare clients of these stores.

use fencelock::composite::{KeyRule, Map};
use fencelock::{Result, StoreUrl};

/// The shards of a set, each with its URL.
#[derive(Clone)]
pub(crate) struct Spread {
    map: Map,
    /// In the order of the map.
    pub(crate) urls: Vec<String>,
}

impl Spread {
    /// Reads a URL `shards:`. A baseline ignores weights and rules.
    pub(crate) fn of(url: &str) -> Result<Self> {
        let shards = fencelock::shard_urls(&StoreUrl::parse(url)?);
        let ids = shards.iter().map(|(id, _)| (id.as_str(), 1));
        let map = Map::new(ids, KeyRule::default())?;
        let urls = shards.into_iter().map(|(_, url)| url).collect();
        Ok(Self { map, urls })
    }

    /// The tasks of each shard, with their names. A bare client is connected to one server, so each task keeps only its
    /// names on one shard. The tasks are spread evenly over the shards.
    pub(crate) fn split(&self, names: Vec<Vec<String>>) -> Vec<Vec<Vec<String>>> {
        let ids: Vec<&str> = self.map.shards().map(|(id, _)| id).collect();
        let mut split: Vec<Vec<Vec<String>>> = ids.iter().map(|_| Vec::new()).collect();
        for (task, names) in names.into_iter().enumerate() {
            let on = |at: usize| {
                let here = names
                    .iter()
                    .filter(|name| self.map.shard_of(name) == ids[at]);
                here.cloned().collect::<Vec<_>>()
            };
            let shards = (0..ids.len()).map(|at| (at + task) % ids.len());
            let mut found = shards.map(|at| (at, on(at)));
            if let Some((at, names)) = found.find(|(_, names)| !names.is_empty()) {
                split[at].push(names);
            }
        }
        split
    }
}
