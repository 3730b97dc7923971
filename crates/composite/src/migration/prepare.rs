//! The first record of a set that moves.

use std::iter;
use std::time::Duration;

use fencelock_core::engine::{Record, RecordChange};
use fencelock_core::{ConfigPart, Engine, Error, LeaseKind, Promises, Result};

use crate::migration::change::{Migration, Opened, Stepped};
use crate::migration::floor;
use crate::migration::records::{Records, Settled};
use crate::phase::Phase;
use crate::promises::{Promised, of_moving};
use crate::stored::{Stored, dissolved, may_stand_alone, now};
use crate::times::Times;
use crate::unused::check_unused;

/// The settings of the first record.
///
/// ```
/// # use std::time::Duration;
/// use fencelock_composite::Prepare;
///
/// let wanted = Prepare::default().pace(Duration::from_secs(120)).lock_delay(Duration::from_secs(10));
/// assert_eq!(wanted.tight, Duration::from_secs(2));
/// assert!(!wanted.replace(true).record_lost(true).lock_delay.is_zero());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prepare {
    /// For how long knowledge of the record carries a hold. The longest ttl is two thirds of it, and some steps wait for all of
    /// it.
    pub pace: Duration,
    /// For how long knowledge of the record carries a new grant while a change is under way.
    pub tight: Duration,
    /// The longest lock-delay of a claim. With zero, no claim may have a lock-delay.
    pub lock_delay: Duration,
    /// Whether a store may have the record of an earlier set whose move is over. This record is then replaced.
    pub replace: bool,
    /// Whether a store without a record may get the record that another store has. It may have lost its record, or an
    /// interrupted attempt did not reach it.
    pub record_lost: bool,
}

impl Default for Prepare {
    /// A pace of a minute, a tight time of 2 s, no lock-delay.
    fn default() -> Self {
        Self {
            pace: Duration::from_secs(60),
            tight: Duration::from_secs(2),
            lock_delay: Duration::ZERO,
            replace: false,
            record_lost: false,
        }
    }
}

/// A shorter time would be over before the answer.
const LEAST_TIGHT: Duration = Duration::from_millis(50);

impl Prepare {
    /// Sets [`pace`](Self#structfield.pace).
    #[must_use]
    pub const fn pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Sets [`tight`](Self#structfield.tight).
    #[must_use]
    pub const fn tight(mut self, tight: Duration) -> Self {
        self.tight = tight;
        self
    }

    /// Sets [`lock_delay`](Self#structfield.lock_delay).
    #[must_use]
    pub const fn lock_delay(mut self, lock_delay: Duration) -> Self {
        self.lock_delay = lock_delay;
        self
    }

    /// Sets [`replace`](Self#structfield.replace).
    #[must_use]
    pub const fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets [`record_lost`](Self#structfield.record_lost).
    #[must_use]
    pub const fn record_lost(mut self, lost: bool) -> Self {
        self.record_lost = lost;
        self
    }

    fn times(&self) -> Result<Times> {
        let Self { pace, tight, .. } = *self;
        if tight < LEAST_TIGHT || pace < tight {
            let why = "tight must be at least 50ms, and pace at least as long as tight";
            return Err(Error::invalid("pace", format!("{pace:?}, {tight:?}"), why));
        }
        Ok(Times {
            pace,
            tight,
            lock_delay: self.lock_delay,
        })
    }
}

impl Migration {
    /// Writes the first record, by which the old store alone is in charge. Programs may use the old store meanwhile. Calling it
    /// again completes an attempt that was interrupted.
    ///
    /// # Errors
    /// [`Error::Config`] if a store belongs to another set, or a lock is held in the new store. [`Error::Unsupported`] if a
    /// store keeps no record or cannot raise its tokens. Where shards are added or removed, [`Error::Config`] if a store is not
    /// one of the old set. Also the errors of the stores, which all must answer.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{Migrate, Phase, Prepare, Stepped};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let (one, other) = (Memory::new(), Memory::new());
    /// # let moved = || Migrate::between(
    /// #     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
    /// #     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
    /// # ).set("orders").migration();
    /// # let wanted = Prepare::default().pace(Duration::from_millis(300)).tight(Duration::from_millis(100));
    /// let prepared = moved()?.prepare(&wanted, "me").await?;
    /// assert_eq!(prepared, Stepped::Done(Phase::Old));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn prepare(&self, wanted: &Prepare, by: &str) -> Result<Stepped> {
        let times = wanted.times()?;
        let opened = self.open().await?;
        let prepared = self.prepare_opened(&opened, wanted, times, by).await;
        opened.close().await;
        prepared.map(|settled| Stepped::Done(settled.stored.phase()))
    }

    async fn prepare_opened(
        &self,
        opened: &Opened,
        wanted: &Prepare,
        times: Times,
        by: &str,
    ) -> Result<Settled> {
        let records = self.records(opened, wanted.record_lost);
        let promised = self.promised(opened, times)?;
        let (mut version, mut made) = (0, false);
        let (mut before, mut over, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for (at, engine) in opened.engines.iter().enumerate() {
            let record = engine.record("", None).await?;
            let found = self.found(&records, at, &record.text, wanted.replace)?;
            before.push(record);
            match found {
                Found::Nothing => missing.push(at),
                Found::Own => made = true,
                Found::Over(last) => {
                    check_pace(&**engine, &last, times)?;
                    version = version.max(last.version);
                    over.push((at, last));
                }
            }
        }
        let added = self.maps.added();
        if made {
            for (at, _) in over {
                let new = added.contains(&opened.ids[at].as_str());
                records.take_over(at, before[at].version, new).await?;
            }
        } else {
            for at in missing {
                self.check_made(&opened.ids[at], &*opened.engines[at])?;
            }
            for id in added {
                check_unused(&**opened.at(id)?).await?;
            }
            let mut first = Stored::first_moving(&self.set, &self.maps, promised, times, by);
            for (at, last) in &over {
                first.go_on_above(&opened.ids[*at], last);
            }
            first.version = version + 1;
            if let Some(moving) = &mut first.moving {
                moving.at = now();
            }
            self.write_first(&records, &first, &before, by).await?;
        }
        let settled = records.settle().await?;
        if settled.stored.times() != Some(times) {
            let why = "the set is prepared already, with another pace, tight or lock-delay; repeat with the same ones";
            return Err(Error::config(&self.set, ConfigPart::Record, why));
        }
        Ok(settled)
    }

    /// Writes the first record into all stores, the arbiter first. Another administrator may be faster. If the arbiter has
    /// their record, no other store is written. If another set gets one of the other stores, those that were written are given
    /// back.
    async fn write_first(
        &self,
        records: &Records<'_>,
        first: &Stored,
        before: &[Record],
        by: &str,
    ) -> Result<()> {
        let arbiter = records.arbiter;
        let others = (0..before.len()).filter(|at| *at != arbiter);
        for at in iter::once(arbiter).chain(others) {
            let own = first.of_shard(&records.ids[at]);
            if records.write(at, before[at].version, &own).await? {
                continue;
            }
            if at == arbiter {
                return Ok(());
            }
            if let Err(taken) = records.read(at).await {
                self.give_back(records, first, before, by).await?;
                return Err(taken);
            }
        }
        Ok(())
    }

    /// Takes the first record out of the stores that have it. Not where shards are added or removed: programs of the old set may
    /// know the record already, and it allows them what the old one did.
    async fn give_back(
        &self,
        records: &Records<'_>,
        first: &Stored,
        before: &[Record],
        by: &str,
    ) -> Result<()> {
        if self.maps.sets.is_some() {
            return Ok(());
        }
        for (at, before) in before.iter().enumerate() {
            let own = first.of_shard(&records.ids[at]);
            let found = records.engines[at].record("", None).await?;
            if found.text != own.text()? {
                continue;
            }
            // No record can be deleted. This one counts as none.
            let text = match before.text.is_empty() {
                true => own.dissolved(by).text()?,
                false => before.text.clone(),
            };
            let change = RecordChange::new(found.version, text)?;
            records.engines[at].record("", Some(&change)).await?;
        }
        Ok(())
    }

    /// What a store already has.
    fn found(&self, records: &Records<'_>, at: usize, text: &str, replace: bool) -> Result<Found> {
        if text.is_empty() {
            return Ok(Found::Nothing);
        }
        let engine = &*records.engines[at];
        if let Some(last) = dissolved(text) {
            // Like a store without a record. But programs of the last set may still hold locks, for its pace at most.
            self.check_made(&records.ids[at], engine)?;
            return Ok(Found::Over(Box::new(last)));
        }
        let own = Stored::parse_change(text, &self.set, &records.ids[at], &self.maps);
        let (before, is_over) = self.earlier(&records.ids[at], text);
        match own {
            Ok(_) => Ok(Found::Own),
            Err(_) if before || replace && is_over => {
                let stored = Stored::parse(text)
                    .map_err(|why| Error::config(engine, ConfigPart::Record, why))?;
                Ok(Found::Over(Box::new(stored)))
            }
            Err(why) if is_over => Err(Error::config(
                engine,
                ConfigPart::Record,
                format!(
                    "{why}. That set's move is over, or was never begun: `--replace` ends that set"
                ),
            )),
            Err(why) if is_first(text) => Err(Error::config(
                engine,
                ConfigPart::Record,
                format!(
                    "{why}. That set is in its first phase: `fencelock migrate abort` of that set gives this store back"
                ),
            )),
            Err(why) => {
                let why = self.unlike_made(&records.ids[at], text).unwrap_or(why);
                Err(Error::config(engine, ConfigPart::Record, why))
            }
        }
    }

    /// How a record of the old set of shards differs from the one with which this shard was made. `None` if it does not.
    fn unlike_made(&self, id: &str, text: &str) -> Option<String> {
        let [old, _] = self.maps.sets.as_ref()?;
        let stored = Stored::parse(text)
            .ok()
            .filter(|stored| stored.set == *old)?;
        stored.check_fixed(old, id, &self.maps.old).err()
    }

    /// Whether the old set of shards was made with this store's record, and that belongs to a change that is over or was never
    /// begun.
    fn earlier(&self, id: &str, text: &str) -> (bool, bool) {
        let alone = may_stand_alone(text);
        let (Some([old, _]), Ok(stored)) = (&self.maps.sets, Stored::parse(text)) else {
            return (false, alone);
        };
        let map = &self.maps.old;
        let of_map = map.weight(id).is_some();
        let made = stored.check_fixed(old, id, map).is_ok();
        let over = stored.check(old, id, map).is_ok();
        (of_map && made, alone || of_map && over)
    }

    /// Refuses a store of the old set of shards that has no record: it is another store, or has lost its data.
    fn check_made(&self, id: &str, engine: &dyn Engine) -> Result<()> {
        match &self.maps.sets {
            Some([old, _]) if self.maps.old.weight(id).is_some() => {
                let why = format!(
                    "it has no record that says that it is shard {id} of the set {old:?}. Is this the right store? A new set is \
                     made with `fencelock shards init`"
                );
                Err(Error::config(engine, ConfigPart::Record, why))
            }
            _ => Ok(()),
        }
    }

    /// The promises that all stores keep.
    fn promised(&self, opened: &Opened, times: Times) -> Result<Promised> {
        let mut all: Option<Promised> = None;
        for engine in &opened.engines {
            check_store(&**engine)?;
            let own = Promised::of(engine.promises());
            all = Some(all.map_or(own.clone(), |all| all.and(&own)));
        }
        let all =
            all.ok_or_else(|| Error::config(&self.set, ConfigPart::Record, "it has no store"))?;
        let promises = of_moving(&all, times);
        if promises.max_ttl < promises.min_ttl {
            let why = format!(
                "it is too short: the longest ttl is two thirds of it, {:?}, and the shortest ttl of a store is {:?}; choose a longer pace",
                promises.max_ttl, promises.min_ttl
            );
            return Err(Error::invalid("pace", format!("{:?}", times.pace), why));
        }
        check_lock_delay(&all, &promises, times)?;
        Ok(all)
    }
}

/// Refuses a longest lock-delay for which no program could ask.
fn check_lock_delay(stores: &Promised, set: &Promises, times: Times) -> Result<()> {
    let wanted = times.lock_delay;
    if wanted.is_zero() {
        return Ok(());
    }
    // A lease has the lock-delay and at least the shortest ttl.
    let longest = set.max_ttl.saturating_sub(set.min_ttl);
    let why = match stores.promises("migrate").lock_delay {
        false => "one of the stores offers none; leave it out".to_owned(),
        true if wanted > longest => format!(
            "no program could use it: ttl and lock-delay together are at most {:?}, two thirds of the pace or less, so it can be {longest:?} at most",
            set.max_ttl
        ),
        true => return Ok(()),
    };
    Err(Error::invalid("lock-delay", format!("{wanted:?}"), why))
}

/// Whether this is the record of a set in its first phase.
fn is_first(text: &str) -> bool {
    Stored::parse(text).is_ok_and(|stored| stored.moving.is_some() && stored.phase() == Phase::Old)
}

/// The record of a store.
enum Found {
    Nothing,
    /// The record of this set.
    Own,
    /// The record of another set whose move is over.
    Over(Box<Stored>),
}

/// Refuses a pace below that of the set that ends. Its programs may believe for its pace, but the steps of the next move wait
/// only for their own.
fn check_pace(engine: &dyn Engine, ended: &Stored, times: Times) -> Result<()> {
    match ended.times() {
        Some(before) if before.pace > times.pace || before.lock_delay > times.lock_delay => {
            let why = format!(
                "programs of the set {}, which ends, may hold locks for its pace of {:?} and its lock-delay of {:?}; use no shorter ones",
                ended.set, before.pace, before.lock_delay
            );
            Err(Error::config(engine, ConfigPart::Record, why))
        }
        _ => Ok(()),
    }
}

/// Refuses a store whose locks cannot move to or from another one.
fn check_store(engine: &dyn Engine) -> Result<()> {
    let promises = engine.promises();
    let why = match (promises.record, promises.floor) {
        (false, _) => "this kind of store keeps no record",
        _ if promises.lease == LeaseKind::Connection => {
            "a lock there ends with a connection; it can be a shard, and locks cannot move there while programs run"
        }
        (_, floor) => match floor::why_not(floor) {
            None => return Ok(()),
            Some(why) => why,
        },
    };
    Err(Error::unsupported(engine, "a live migration", why))
}
