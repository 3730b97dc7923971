//! The end of a set that is down to one store. First the store's counters are raised above the floor, and then the record says
//! that the set is dissolved. After that programs use the store by its own URL.

use std::sync::Arc;

use fencelock_core::{ConfigPart, Engine, Error, Result};

use crate::migration::change::close;
use crate::migration::records::{ROUNDS, busy, write};
use crate::migration::{Migration, Stepped, floor};
use crate::set::Shards;
use crate::shard::Shard;
use crate::stored::Stored;

/// Why a set of several stores is not ended.
const SEVERAL: &str =
    "its names lie on several stores; remove all shards but one first (docs/operations.md)";

impl Migration {
    /// Ends the set once its move is over: programs then use the new store by itself. Its tokens go on above all earlier ones.
    /// The old store is not asked. If an attempt is interrupted, the next one completes it.
    ///
    /// The record of the new store is not deleted, but says from then on that the set was dissolved. So programs that still
    /// use the set are refused, and the next set knows for how long they may still hold locks.
    ///
    /// # Errors
    /// [`Error::Config`] if the store has no record of this set, or if its tokens cannot be raised. Also the errors
    /// of the store.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{How, Migrate, Prepare, Stepped};
    /// # use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let (pace, tight) = (Duration::from_millis(300), Duration::from_millis(100));
    /// # moved()?.prepare(&Prepare::default().pace(pace).tight(tight), "me").await?;
    /// # let how = How::new("me").despite_findings(true);
    /// # moved()?.begin(&how).await?;
    /// assert!(matches!(moved()?.dissolve("me").await?, Stepped::NotYet(_)));
    /// moved()?.finish(&how).await?; // both stores, the new one counts
    /// moved()?.finish(&how).await?; // the new store alone
    /// assert!(matches!(moved()?.dissolve("me").await?, Stepped::Dissolved(_)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dissolve(&self, by: &str) -> Result<Stepped> {
        let mut ids = self.maps.new.shards().map(|(id, _)| id);
        let (Some(id), None) = (ids.next(), ids.next()) else {
            return Ok(Stepped::NotYet(SEVERAL.to_owned()));
        };
        let check = |stored: &Stored| stored.check_change(&self.set, id, &self.maps);
        dissolve(self.shard(id)?, &self.set, check, by).await
    }
}

impl Shards {
    /// Ends a set of one shard: programs then use its store by itself. See [`Migration::dissolve`].
    ///
    /// # Errors
    /// Those of [`Migration::dissolve`].
    pub async fn dissolve(self, by: &str) -> Result<Stepped> {
        let map = self.map()?;
        let [shard] = &*self.shards else {
            return Ok(Stepped::NotYet(SEVERAL.to_owned()));
        };
        let check = |stored: &Stored| stored.check(&self.set, &shard.id, &map);
        dissolve(shard, &self.set, check, by).await
    }
}

async fn dissolve(
    shard: &Shard,
    set: &str,
    check: impl Fn(&Stored) -> Result<(), String> + Send,
    by: &str,
) -> Result<Stepped> {
    let store = shard.store.open().await?;
    let dissolved = dissolve_opened(&store, &shard.id, set, check, by).await;
    close(&*store).await;
    dissolved
}

async fn dissolve_opened(
    store: &Arc<dyn Engine>,
    id: &str,
    set: &str,
    check: impl Fn(&Stored) -> Result<(), String> + Send,
    by: &str,
) -> Result<Stepped> {
    for _ in 0..ROUNDS {
        let record = store.record("", None).await?;
        if record.text.is_empty() {
            let why = "it has no record: it is another store than the set's, or has lost its data; correct the URL of the set";
            return Err(Error::config(store, ConfigPart::Record, why));
        }
        let stored = Stored::parse(&record.text)
            .map_err(|why| Error::config(store, ConfigPart::Record, why))?;
        if stored.was_dissolved_as(set, id) {
            return Ok(Stepped::Dissolved(store.to_string()));
        }
        check(&stored).map_err(|why| Error::config(store, ConfigPart::Record, why))?;
        if let Some(why) = stored.unfinished() {
            return Ok(Stepped::NotYet(why));
        }
        check_counter(&**store)?;
        // Programs that use the store by its own URL do not know the floor. So the counters must be above the floor before the
        // record ends.
        floor::raise(store, stored.floor(id)).await?;
        if write(&**store, record.version, &stored.dissolved(by)).await? {
            return Ok(Stepped::Dissolved(store.to_string()));
        }
    }
    Err(busy(store))
}

/// Refuses a store whose tokens cannot be raised.
fn check_counter(store: &dyn Engine) -> Result<()> {
    match floor::why_not(store.promises().floor) {
        None => Ok(()),
        Some(why) => Err(Error::config(
            store,
            ConfigPart::Record,
            format!("its set cannot be dissolved: {why}"),
        )),
    }
}
