//! The state of a migration.

use std::time::Duration;

use fencelock_core::{ConfigPart, Error, Result};
use futures_util::future::join_all;

use crate::migration::change::{Migration, Opened};
use crate::migration::pairs::{Pairs, Side, Unpaired};
use crate::phase::Phase;
use crate::stored::Stored;

/// The state of a migration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The phase of the highest record.
    pub phase: Phase,
    /// Its version.
    pub version: u64,
    /// When it was written, in seconds since 1970, by the clock of its writer.
    pub since: u64,
    /// Who wrote it.
    pub by: String,
    /// For how long knowledge of the record carries a hold.
    pub pace: Duration,
    /// For how long it carries a new grant during a change.
    pub tight: Duration,
    /// Each store.
    pub stores: Vec<StoreStatus>,
    /// How many holds of names that move are in the old store only, in the new one only, and in both. `None` if a store does
    /// not answer.
    pub held: Option<(usize, usize, usize)>,
    /// Holders in one store alone. They would lose their holds in the next step, or exclude nobody after it: programs that were
    /// not switched.
    pub unpaired: Vec<Unpaired>,
}

/// One store of a migration.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreStatus {
    /// Its id.
    pub id: String,
    /// The store, without its password.
    pub store: String,
    /// The version of its record. `None` if it has no record or does not answer.
    pub version: Option<u64>,
    /// Why the version is not known.
    pub away: Option<String>,
}

impl Migration {
    /// The state of the migration. A store that does not answer is reported as away, as long as another one has the record.
    ///
    /// # Errors
    /// [`Error::Config`] for a store of another set. The errors of the stores if none answers.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{Migrate, Phase, Prepare};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// moved()?.prepare(&wanted, "me").await?;
    /// let status = moved()?.status().await?;
    /// assert_eq!((status.phase, status.version), (Phase::Old, 1));
    /// assert_eq!(status.held, Some((0, 0, 0)));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self) -> Result<Status> {
        let opened = join_all(self.stores.iter().map(|shard| shard.store.open())).await;
        let mut stores = Vec::new();
        let mut highest: Option<Stored> = None;
        let mut away = None;
        let ids: Vec<_> = self.stores.iter().map(|shard| shard.id.clone()).collect();
        let mut engines = Vec::new();
        for (shard, opened) in self.stores.iter().zip(opened) {
            let (mut version, mut why) = (None, None);
            let read = match &opened {
                Ok(engine) => engine.record("", None).await.map(|record| record.text),
                Err(error) => Err(Error::unavailable(
                    &shard.store,
                    "opening it",
                    error.to_string(),
                )),
            };
            match read {
                Ok(text) if text.is_empty() => why = Some("it has no record".to_owned()),
                Ok(text) => {
                    let stored = self.understand(&shard.id, &text)?;
                    version = Some(stored.version);
                    if highest
                        .as_ref()
                        .is_none_or(|known| known.version < stored.version)
                    {
                        highest = Some(stored);
                    }
                }
                Err(error) => {
                    why = Some(error.to_string());
                    away = away.or(Some(error));
                }
            }
            engines.extend(opened.ok());
            stores.push(StoreStatus {
                id: shard.id.clone(),
                store: shard.store.to_string(),
                version,
                away: why,
            });
        }
        let opened = Opened { ids, engines };
        let status = match (highest, away) {
            (Some(stored), _) => self.describe(&opened, &stored, stores).await,
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::config(
                &self.set,
                ConfigPart::Record,
                "no store has a record; prepare the set with `fencelock migrate prepare`",
            )),
        };
        opened.close().await;
        status
    }

    fn understand(&self, id: &str, text: &str) -> Result<Stored> {
        let stored = Stored::parse_change(text, &self.set, id, &self.maps);
        stored.map_err(|why| Error::config(format!("{} ({id})", self.set), ConfigPart::Record, why))
    }

    async fn describe(
        &self,
        opened: &Opened,
        stored: &Stored,
        stores: Vec<StoreStatus>,
    ) -> Result<Status> {
        let (times, moving) = (stored.times(), stored.moving.as_ref());
        let mut status = Status {
            phase: stored.phase(),
            version: stored.version,
            since: moving.map_or(0, |moving| moving.at),
            by: moving.map_or_else(String::new, |moving| moving.by.clone()),
            pace: times.map_or(Duration::ZERO, |times| times.pace),
            tight: times.map_or(Duration::ZERO, |times| times.tight),
            stores,
            held: None,
            unpaired: Vec::new(),
        };
        if opened.engines.len() < opened.ids.len() {
            return Ok(status);
        }
        // Those in the new store alone would lose their holds on the way back. Those in the old store alone would do so in the
        // hush, and after the move they would exclude nobody.
        let sides: &[Side] = match status.phase {
            Phase::BothOld => &[Side::Old],
            Phase::BothNew => &[Side::Old, Side::New],
            Phase::Old | Phase::Hush | Phase::New => &[],
        };
        // The counts and the names come from one listing.
        let pairs = Pairs {
            opened,
            maps: &self.maps,
            sides,
        };
        let seen = pairs.lingering(Duration::ZERO, Duration::ZERO, &|_| {});
        let seen = seen.await?;
        status.held = Some(seen.held.counts());
        status.unpaired = seen.lingering;
        Ok(status)
    }
}
