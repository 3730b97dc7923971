//! A set of three SQLite files. Each case has its own files, with their records.

use std::time::Duration;

use async_trait::async_trait;
use fencelock_testbed::{Failure, Result};

use super::sqlite::InFile;
use crate::subject::{Store, Subject};

pub(crate) struct ThreeFiles;

const IDS: [&str; 3] = ["a", "b", "c"];

#[async_trait]
impl Subject for ThreeFiles {
    fn name(&self) -> &'static str {
        "shards"
    }

    fn claim_window(&self) -> Duration {
        InFile.claim_window()
    }

    async fn open(&self, server: bool) -> Result<Box<dyn Store>> {
        let mut stores = Vec::new();
        for _ in IDS {
            stores.push(InFile.open(server).await?);
        }
        let set = Set(stores);
        let shards = IDS.iter().zip(&set.0);
        let named = shards.fold(fencelock::ShardSet::new("shards"), |named, (id, store)| {
            named.shard(*id, 1, store.url())
        });
        let made = fencelock::init(named).await;
        made.map_err(|error| Failure::new(error.to_string()))?;
        Ok(Box::new(set))
    }
}

struct Set(Vec<Box<dyn Store>>);

#[async_trait]
impl Store for Set {
    fn url(&self) -> String {
        let shards = IDS.iter().zip(&self.0);
        let shards = shards.map(|(id, store)| format!("{id}={}", store.url()));
        format!("shards:?{}", shards.collect::<Vec<_>>().join("&"))
    }

    async fn leftovers(&self) -> Result<u64> {
        let mut left = 0;
        for store in &self.0 {
            left += store.leftovers().await?;
        }
        Ok(left)
    }
}
