//! The record in all stores of a set: one text, on which the *arbiter* decides. The arbiter is the first store of the old map.

use std::fmt;
use std::sync::Arc;

use fencelock_core::engine::{MAX_FLOOR, Record, RecordChange};
use fencelock_core::{BootInstant, Clock, ConfigPart, Engine, Error, Result, Token};
use futures_util::future::join_all;

use crate::maps::Maps;
use crate::migration::floor;
use crate::phase::Phase;
use crate::stored::{AFTER_LOSS, Stored, is_outdated, now};
use crate::unused::check_unused;

/// How often to try again because somebody else wrote at the same moment.
pub(crate) const ROUNDS: u32 = 20;

/// The stores of a set, opened to make a step.
pub(crate) struct Records<'a> {
    pub(crate) set: &'a str,
    pub(crate) maps: &'a Maps,
    pub(crate) ids: &'a [String],
    pub(crate) engines: &'a [Arc<dyn Engine>],
    pub(crate) arbiter: usize,
    /// Whether a store without a record gets the record of the others.
    pub(crate) adopts: bool,
}

/// The record that all stores have.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    pub(crate) stored: Stored,
    /// The arbiter's version of it.
    from: u64,
    /// When all stores were seen to have it. The wait of a step counts from here.
    pub(crate) seen: BootInstant,
}

/// What one store has.
pub(crate) struct Read {
    pub(crate) record: Record,
    pub(crate) stored: Option<Stored>,
}

impl Records<'_> {
    pub(crate) async fn read(&self, at: usize) -> Result<Read> {
        let engine = &*self.engines[at];
        let record = engine.record("", None).await?;
        self.understand(at, record)
    }

    fn understand(&self, at: usize, record: Record) -> Result<Read> {
        if record.text.is_empty() {
            let stored = None;
            return Ok(Read { record, stored });
        }
        let stored = Stored::parse_change(&record.text, self.set, &self.ids[at], self.maps);
        let stored =
            Some(stored.map_err(|why| Error::config(&*self.engines[at], ConfigPart::Record, why))?);
        Ok(Read { record, stored })
    }

    pub(crate) async fn read_all(&self) -> Vec<Result<Read>> {
        join_all((0..self.engines.len()).map(|at| self.read(at))).await
    }

    /// Whether all stores have one record already.
    pub(crate) async fn is_settled(&self) -> Result<bool> {
        let reads = self.read_all().await.into_iter();
        let reads = reads.collect::<Result<Vec<_>>>()?;
        let mut versions = reads.iter().map(|read| {
            let stored = read.stored.as_ref();
            stored.map(|stored| stored.version)
        });
        let first = versions.next();
        Ok(versions.all(|version| Some(version) == first))
    }

    /// Brings all stores to one record: the arbiter's, unless it is lost or older than another. Every step begins with this, so
    /// a step that was interrupted between two stores is completed first.
    pub(crate) async fn settle(&self) -> Result<Settled> {
        for _ in 0..ROUNDS {
            let reads = self.read_all().await;
            let reads = reads.into_iter().collect::<Result<Vec<_>>>()?;
            self.check_lost(&reads)?;
            if self.raise_after_loss(&reads).await? {
                continue;
            }
            if self.mend_arbiter(&reads).await? {
                continue;
            }
            let Read { record, stored } = &reads[self.arbiter];
            let Some(stored) = stored else { continue };
            let mut mended = false;
            for (at, read) in reads.iter().enumerate() {
                let wanted = stored.of_shard(&self.ids[at]);
                if read.stored.as_ref() != Some(&wanted) {
                    self.write(at, read.record.version, &wanted).await?;
                    mended = true;
                }
            }
            if !mended {
                return Ok(Settled {
                    stored: stored.clone(),
                    from: record.version,
                    seen: Clock::Boot.now(),
                });
            }
        }
        Err(busy(self.set))
    }

    /// Refuses a store without a record if another store has it, unless `adopts` is set.
    pub(crate) fn check_lost(&self, reads: &[Read]) -> Result<()> {
        let lost = reads.iter().position(|read| read.stored.is_none());
        match lost.filter(|_| !self.adopts && reads.iter().any(|read| read.stored.is_some())) {
            None => Ok(()),
            Some(at) => {
                let is_over = |read: &Read| {
                    let stored = read.stored.as_ref();
                    stored.is_some_and(|stored| stored.phase() == Phase::New)
                };
                // After `finish_without_old`, for example.
                let over = match reads.iter().any(is_over) {
                    true => {
                        ". The move is over by the record of the new store: if the old store is gone for good, nothing is left to do"
                    }
                    false => "",
                };
                let why = format!(
                    "the set {} has a record in another store, and none here. Is this the right store? If its record was lost, or `prepare` was interrupted, repeat with --record-lost{over}",
                    self.set
                );
                Err(Error::config(&*self.engines[at], ConfigPart::Record, why))
            }
        }
    }

    /// Raises the floor of a store that counts and has lost its record, or has a much older one, and so perhaps has lost its
    /// counter of tokens. Its tokens may have been ahead of the time, so a new counter does not begin above them. Returns whether
    /// there was such a store. If this is interrupted, the floor is raised twice, which does no harm.
    async fn raise_after_loss(&self, reads: &[Read]) -> Result<bool> {
        let found = reads.iter().filter_map(|read| read.stored.as_ref());
        let Some(highest) = found.max_by_key(|stored| stored.version) else {
            return Ok(false);
        };
        let lost = |at: &usize| {
            let stored = reads[*at].stored.as_ref();
            stored.is_none_or(|stored| is_outdated(stored.version, highest.version))
        };
        let counts = |at: &usize| highest.counts_in(&self.ids[*at]);
        let raised = |at: &usize| highest.floor(&self.ids[*at]) > Token(0);
        let lost: Vec<_> = (0..reads.len()).filter(lost).collect();
        let raised: Vec<_> = lost.iter().filter(|at| counts(at) && raised(at)).collect();
        if raised.is_empty() {
            return Ok(false);
        }
        let mut next = highest.clone();
        next.version += AFTER_LOSS;
        let mut floors = Vec::new();
        for at in raised {
            let (id, engine) = (&self.ids[*at], &self.engines[*at]);
            let floor = highest.floor_after_loss(id);
            if floor > MAX_FLOOR {
                let why = format!(
                    "its tokens would have to be above {MAX_FLOOR}, which no store can do; use new names for the locks"
                );
                return Err(Error::invalid("floor", floor.to_string(), why));
            }
            // The counter comes first: programs that use the store by itself do not know the floor, and neither does a later step.
            floor::raise(engine, floor).await?;
            floors.push((id.clone(), floor.get()));
        }
        if let Some(moving) = &mut next.moving {
            moving.floors.extend(floors);
            moving.floors_at.get_or_insert_with(now);
            if lost.contains(&self.arbiter) {
                moving.floor_due = true;
            }
        }
        let version = reads[self.arbiter].record.version;
        let own = next.of_shard(&self.ids[self.arbiter]);
        if self.write(self.arbiter, version, &own).await? {
            for at in lost.into_iter().filter(|at| *at != self.arbiter) {
                let record = next.of_shard(&self.ids[at]);
                self.write(at, reads[at].record.version, &record).await?;
            }
        }
        Ok(true)
    }

    /// Gives the arbiter a record if it has lost its own, or if its own is older than that of another store, since it was restored
    /// from a backup. Returns whether a record was written by anybody.
    async fn mend_arbiter(&self, reads: &[Read]) -> Result<bool> {
        let found = reads.iter().filter_map(|read| read.stored.as_ref());
        let Some(highest) = found.max_by_key(|stored| stored.version) else {
            let why = "no store has a record; prepare the set with `fencelock migrate prepare`";
            return Err(Error::config(self.set, ConfigPart::Record, why));
        };
        let own = &reads[self.arbiter];
        if (own.stored.as_ref()).is_some_and(|stored| stored.version >= highest.version) {
            return Ok(false);
        }
        let mut wanted = highest.clone();
        wanted.version += AFTER_LOSS;
        if let Some(moving) = &mut wanted.moving {
            // The lost record may have been the end of the hush, so tokens of the other store may have counted.
            moving.floor_due = true;
        }
        let wanted = wanted.of_shard(&self.ids[self.arbiter]);
        self.write(self.arbiter, own.record.version, &wanted)
            .await?;
        Ok(true)
    }

    /// Writes a record into one store, unless somebody else has written first. Returns whether this record is there now.
    pub(crate) async fn write(&self, at: usize, from: u64, stored: &Stored) -> Result<bool> {
        write(&*self.engines[at], from, stored).await
    }

    /// Makes a step: first in the arbiter, which decides between two administrators, then in all stores. `None` if another
    /// administrator has made a step.
    pub(crate) async fn step(&self, from: &Settled, next: &Stored) -> Result<Option<Settled>> {
        #[cfg(fencelock_planted)]
        if fencelock_core::planted::is("past-the-arbiter") {
            for at in (0..self.ids.len()).filter(|at| *at != self.arbiter) {
                let version = self.read(at).await?.record.version;
                self.write(at, version, &next.of_shard(&self.ids[at]))
                    .await?;
            }
        }
        let now = self.read(self.arbiter).await?;
        if now.record.version != from.from || now.stored.as_ref() != Some(&from.stored) {
            return Ok(None);
        }
        let next = next.of_shard(&self.ids[self.arbiter]);
        if !self.write(self.arbiter, from.from, &next).await? {
            return Ok(None);
        }
        let settled = self.settle().await?;
        Ok((settled.stored == next).then_some(settled))
    }

    /// Gives a store the record of this set, in place of that of another set whose move is over or was never begun. `version`
    /// is that of the replaced record, and `new` says that no program may use the store yet.
    pub(crate) async fn take_over(&self, at: usize, version: u64, new: bool) -> Result<()> {
        let Some(own) = self.read(self.arbiter).await?.stored else {
            return Ok(());
        };
        if new {
            check_unused(&*self.engines[at]).await?;
        }
        // If somebody else has written meanwhile, the caller notices it.
        self.write(at, version, &own.of_shard(&self.ids[at]))
            .await?;
        Ok(())
    }

    /// The stores whose record says that they are the arbiter of this set although they are not, with the version of that
    /// record. This happens if `prepare` was called twice at the same time, with the stores in another order. Nobody has begun
    /// then.
    pub(crate) async fn doubles(&self) -> Result<Vec<(usize, u64)>> {
        let mut doubles = Vec::new();
        for at in (0..self.ids.len()).filter(|at| *at != self.arbiter) {
            let record = self.engines[at].record("", None).await?;
            let of_arbiter = |stored: &Stored| {
                let own = stored.check_moving(self.set, &self.ids[self.arbiter], self.ids);
                own.is_ok() && stored.phase() == Phase::Old
            };
            if Stored::parse(&record.text).as_ref().is_ok_and(of_arbiter) {
                doubles.push((at, record.version));
            }
        }
        Ok(doubles)
    }
}

/// Writes a store's record, unless somebody else has written first. Returns whether this record is there now.
pub(crate) async fn write(store: &dyn Engine, from: u64, stored: &Stored) -> Result<bool> {
    let text = stored.text()?;
    let change = RecordChange::new(from, &text)?;
    let found = store.record("", Some(&change)).await?;
    Ok(found.text == text)
}

/// The error after [`ROUNDS`] attempts.
pub(crate) fn busy(store: impl fmt::Display) -> Error {
    let why = "others write it at the same time; repeat when they are done";
    Error::unavailable(store, "writing the record", why)
}
