//! A migration as a program describes it (two stores or two sets of shards, and the name of the set), and how it is opened.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fencelock_core::{ConfigPart, Error, Promises, Result};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::map::{KeyRule, Map};
use crate::maps::Maps;
use crate::member::{Common, Member, Rule};
use crate::migration::Migration;
use crate::moving::engine::Moving;
use crate::moving::state::{State, keep_reading};
use crate::open::{Opening, limits};
use crate::opened_events::Joining;
use crate::promises::of_moving;
use crate::set::{Shards, check_name};
use crate::shard::Shard;

/// The id of the old store.
pub(crate) const FROM: &str = "from";

/// The id of the new store.
pub(crate) const TO: &str = "to";

/// The default name of a set.
const SET: &str = "migrate";

/// Once one store has answered, the others have this long to answer, before the set is used without them.
const GRACE: Duration = Duration::from_secs(1);

/// The description of two stores between which locks move, to open them or to make the steps of the move.
///
/// ```
/// # use std::sync::Arc;
/// # use fencelock_core::*;
/// use fencelock_composite::{Migrate, Prepare};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// # let (one, other) = (Memory::new(), Memory::new());
/// let stores = || Migrate::between(
///     ("from", Arc::new(one.another()) as Arc<dyn Engine>),
///     ("to", Arc::new(other.another()) as Arc<dyn Engine>),
/// ).set("orders");
/// // Once, before the first program is switched.
/// stores().migration()?.prepare(&Prepare::default(), "the documentation").await?;
/// // In each program.
/// let client = Client::new(Arc::new(stores().open().await?))?;
/// client.lock("report").await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "call open or migration"]
pub struct Migrate {
    set: String,
    /// The sets before and after the change, if shards are added or removed.
    sets: Option<Box<[Shards; 2]>>,
    /// The stores of both maps.
    stores: Vec<Shard>,
    breaker: bool,
}

impl Migrate {
    /// From the old store to the new one. Their ids become `from` and `to`, even if other ids are given.
    pub fn between(from: impl Into<Shard>, to: impl Into<Shard>) -> Self {
        let stores = [(FROM, from.into()), (TO, to.into())];
        let stores = stores.map(|(id, shard)| Shard::new(id, shard.store));
        Self::of(None, stores.into())
    }

    /// From one set of shards to another, in which shards were added or removed. A shard that stays keeps its id and uses the
    /// store of `from`, and the names on it are not affected by the change. It is not checked that both sets mean the same
    /// store by one id.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use fencelock_core::*;
    /// use fencelock_composite::{Migrate, Prepare, Routed};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let stores = [("a", Memory::new()), ("b", Memory::new()), ("c", Memory::new())];
    /// let shards = |count: usize| {
    ///     let shards = stores.iter().take(count);
    ///     Routed::shards(shards.map(|(id, store)| (*id, Arc::new(store.another()) as Arc<dyn Engine>)))
    /// };
    /// shards(2).set("orders").init().await?;
    /// let grow = || Migrate::shards(shards(2).set("orders"), shards(3).set("orders")).set("grow");
    /// // Once, before the first program is switched.
    /// grow().migration()?.prepare(&Prepare::default(), "the documentation").await?;
    /// // In each program.
    /// let client = Client::new(Arc::new(grow().open().await?))?;
    /// client.lock("report").await?.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn shards(from: Shards, to: Shards) -> Self {
        let mut stores = from.shards.clone();
        for shard in &to.shards {
            if stores.iter().all(|known| known.id != shard.id) {
                stores.push(shard.clone());
            }
        }
        Self::of(Some(Box::new([from, to])), stores)
    }

    fn of(sets: Option<Box<[Shards; 2]>>, stores: Vec<Shard>) -> Self {
        Self {
            set: SET.to_owned(),
            sets,
            stores,
            breaker: true,
        }
    }

    fn maps(&self) -> Result<Maps> {
        check_name(&self.set)?;
        let Some([from, to]) = self.sets.as_deref() else {
            let map = |id| Map::new([(id, 1)], KeyRule::default());
            return Ok(Maps {
                old: map(FROM)?,
                new: map(TO)?,
                sets: None,
            });
        };
        let maps = Maps {
            old: from.map()?,
            new: to.map()?,
            sets: Some([from.set.clone(), to.set.clone()]),
        };
        maps.check()?;
        Ok(maps)
    }

    /// The name of the set, which the record of each store has: `migrate` by default.
    pub fn set(mut self, set: impl Into<String>) -> Self {
        self.set = set.into();
        self
    }

    /// Whether each store has a [`Breaker`](fencelock_core::layers::Breaker). By default it has.
    pub fn breaker(mut self, breaker: bool) -> Self {
        self.breaker = breaker;
        self
    }

    /// Checks the name, and that names can move between the two maps.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is wrong.
    pub fn check(&self) -> Result<()> {
        self.maps().map(|_| ())
    }

    /// The object that prepares the migration and makes its steps.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn migration(self) -> Result<Migration> {
        let maps = self.maps()?;
        Ok(Migration::new(self.set, maps, self.stores))
    }

    /// Opens the stores that answer, and reads their records again and again until the engine is closed or dropped.
    ///
    /// # Errors
    /// [`Error::Config`] if no store has a record, or if a record belongs to the other store (the URLs are swapped) or to
    /// another set. [`Error::Unavailable`] if no store with a record answers.
    pub async fn open(self) -> Result<Moving> {
        self.check()?;
        let (joining, events) = Joining::channel();
        let ids = self.stores.iter().map(|shard| shard.id.clone());
        let common = Arc::new(Common {
            scheme: "migrate",
            set: self.set,
            rule: Rule::Moving(ids.collect()),
            promised: OnceLock::new(),
            joining,
            breaker: self.breaker,
            listener: OnceLock::new(),
        });
        let member = |shard: Shard| Member::new(shard.id, shard.store, Arc::clone(&common));
        let members = self.stores.into_iter().map(member);
        let state = State::new(Arc::clone(&common), members.collect());
        if let Err(error) = read_first(&state).await {
            state.close();
            for engine in state.members.iter().filter_map(Member::opened) {
                // Nothing was taken there.
                let _ = engine.close().await;
            }
            return Err(error);
        }
        for store in 0..state.members.len() {
            tokio::spawn(keep_reading(Arc::downgrade(&state), store));
        }
        let promises = promises(&state)?;
        Ok(Moving::new(state, promises, events))
    }
}

/// Reads the records of all stores that answer. At least one must have the record.
async fn read_first(state: &State) -> Result<()> {
    let stores = 0..state.members.len();
    let read = async |store: usize| (store, state.read(store).await);
    let mut reads: FuturesUnordered<_> = stores.map(read).collect();
    let mut away = None;
    let mut refused = Vec::new();
    let mut answered = false;
    loop {
        let read = match answered {
            false => reads.next().await,
            true => match timeout(GRACE, reads.next()).await {
                Ok(read) => read,
                Err(_) => break,
            },
        };
        match read {
            None => break,
            Some((_, Ok(()))) => answered |= state.knowledge.now().is_some(),
            Some((_, Err(error @ Error::Unavailable { .. }))) => away = away.or(Some(error)),
            Some((store, Err(error))) => refused.push((store, error)),
        }
    }
    let known = state.knowledge.now();
    for (store, error) in refused {
        // A store that was given back may belong to another set by now.
        let is_used = known
            .as_ref()
            .is_none_or(|now| now.known.is_used(&state.ids[store]));
        if is_used {
            return Err(error);
        }
        tracing::debug!(%error, "a store that no lock needs now has no record of this set");
    }
    match (state.knowledge.now(), away) {
        (Some(_), _) => Ok(()),
        (None, Some(error)) => Err(error),
        (None, None) => {
            let why = "no store has a record; prepare the set with `fencelock migrate prepare`. If that was done, these are not \
                       its stores, or their data are lost";
            Err(Error::config(state, ConfigPart::Record, why))
        }
    }
}

/// What the record promises, less what the limits of knowledge do not allow.
fn promises(state: &State) -> Result<Promises> {
    let times = state.known()?.known.times;
    let promised = state.common.promised.get().cloned();
    let promised = promised.ok_or_else(|| Error::internal(state, "a record without promises"))?;
    Ok(of_moving(&promised, times).limits(limits(&state.members, Opening::AsNeeded)))
}
