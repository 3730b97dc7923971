//! A set as a program describes it (its shards, its name and its key rule), and how it is made and opened.

use std::sync::{Arc, OnceLock};

use fencelock_core::engine::RecordChange;
use fencelock_core::{ConfigPart, Engine, Error, Result};
use futures_util::future::join_all;

use crate::engine::Routed;
use crate::map::{KeyRule, Map};
use crate::member::{Common, Member, Rule};
use crate::open::{Opening, limits, open};
use crate::opened_events::Joining;
use crate::promises::Promised;
use crate::shard::Shard;
use crate::stored::{Stored, dissolved};
use crate::unused::check_unused;

/// The description of a set, used to make or open it. See [`Routed::shards`].
#[derive(Debug)]
#[must_use = "call open or init"]
pub struct Shards {
    pub(crate) set: String,
    pub(crate) shards: Vec<Shard>,
    key: KeyRule,
    opening: Opening,
    breaker: bool,
}

/// The default name of a set.
const SET: &str = "shards";

impl Routed {
    /// Describes a set of shards: a list of [`Shard`]s, or of ids with their engines.
    pub fn shards(shards: impl IntoIterator<Item = impl Into<Shard>>) -> Shards {
        Shards::new(shards)
    }
}

impl Shards {
    fn new(shards: impl IntoIterator<Item = impl Into<Shard>>) -> Self {
        Self {
            set: SET.to_owned(),
            shards: shards.into_iter().map(Into::into).collect(),
            key: KeyRule::default(),
            opening: Opening::default(),
            breaker: true,
        }
    }

    /// The name of the set, which the record of each store has: `shards` by default.
    pub fn set(mut self, set: impl Into<String>) -> Self {
        self.set = set.into();
        self
    }

    /// Which part of a name decides where it lies. By default the text within `{…}`.
    pub fn key(mut self, key: KeyRule) -> Self {
        self.key = key;
        self
    }

    /// Which stores are opened together with the set. By default all.
    pub fn opening(mut self, opening: Opening) -> Self {
        self.opening = opening;
        self
    }

    /// Whether each store has a [`Breaker`](fencelock_core::layers::Breaker), so that requests for its names fail at once while
    /// it is away. By default it has.
    pub fn breaker(mut self, breaker: bool) -> Self {
        self.breaker = breaker;
        self
    }

    pub(crate) fn map(&self) -> Result<Map> {
        check_name(&self.set)?;
        let shards = self.shards.iter();
        Map::new(
            shards.map(|shard| (shard.id.as_str(), shard.weight)),
            self.key,
        )
    }

    /// Checks the ids, the weights and the name.
    ///
    /// # Errors
    /// [`Error::Invalid`] if one of them is wrong.
    pub fn check(&self) -> Result<()> {
        self.map().map(|_| ())
    }

    /// Opens the set, with the stores that [`opening`](Self::opening) says.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wrong map. [`Error::Config`] if a store has no record, or a record that does not fit: another
    /// shard (the URLs are swapped), another set, or other shards. [`Error::Unavailable`] if no store answers.
    pub async fn open(self) -> Result<Routed> {
        let map = self.map()?;
        let (joining, events) = Joining::channel();
        let clock = self.shards.first().map(|shard| shard.store.clock());
        let common = Arc::new(Common {
            scheme: "shards",
            set: self.set,
            rule: Rule::Fixed(map.clone()),
            promised: OnceLock::new(),
            joining,
            breaker: self.breaker,
            listener: OnceLock::new(),
        });
        let mut shards = self.shards;
        shards.sort_by(|one, other| one.id.cmp(&other.id));
        let member = |shard: Shard| Member::new(shard.id, shard.store, Arc::clone(&common));
        let members: Vec<_> = shards.into_iter().map(member).collect();
        let opened = open(&members, self.opening).await;
        let promised = match (opened, common.promised.get()) {
            (Ok(()), Some(promised)) => promised.promises("shards"),
            (Ok(()), None) => return Err(Error::Closed),
            (Err(error), _) => {
                let opened = members.iter().filter_map(Member::opened);
                join_all(opened.map(|engine| engine.close())).await;
                return Err(error);
            }
        };
        let promises = promised.limits(limits(&members, self.opening));
        Ok(Routed::new(common, map, members, promises, clock, events))
    }

    /// Writes the record of each store, for a new set: before the first lock is taken, and again when a store promises less
    /// than before. If an attempt is interrupted, the next one completes it. All stores must answer.
    ///
    /// # Errors
    /// Those of [`open`](Self::open). [`Error::Config`] if a store has the record of another shard, set or map, or a lock is
    /// held in a store without a record. [`Error::Unsupported`] if a store keeps no record.
    pub async fn init(self) -> Result<()> {
        let map = self.map()?;
        let mut shards = self.shards;
        shards.sort_by(|one, other| one.id.cmp(&other.id));
        let mut engines = Vec::new();
        let mut result = Ok(());
        let opened = join_all(shards.iter().map(|shard| shard.store.open())).await;
        for (shard, opened) in shards.iter().zip(opened) {
            match opened {
                Ok(engine) => engines.push((shard.id.as_str(), engine)),
                Err(error) => result = result.and(Err(error)),
            }
        }
        if result.is_ok() {
            result = write_records(&self.set, &map, &engines).await;
        }
        let closed = join_all(engines.iter().map(|(_, engine)| engine.close())).await;
        closed.into_iter().fold(result, Result::and)
    }
}

/// Refuses a name that a set cannot have.
pub(crate) fn check_name(set: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match (1..=64).contains(&set.len()) && set.chars().all(plain) {
        true => Ok(()),
        false => {
            let why = "it must have 1 to 64 ASCII letters, digits and _ - .";
            Err(Error::invalid("name of a set", set, why))
        }
    }
}

/// Writes the records in the order of the ids, so that the first store decides between two programs that do this at the same
/// time.
async fn write_records(set: &str, map: &Map, engines: &[(&str, Arc<dyn Engine>)]) -> Result<()> {
    let promises = engines
        .iter()
        .map(|(_, engine)| Promised::of(engine.promises()));
    let Some(promised) = promises.reduce(|one, other| one.and(&other)) else {
        return Ok(());
    };
    for (id, engine) in engines {
        // A store that keeps no record is refused before the first record is written.
        if !engine.promises().record {
            engine.record("", None).await?;
        }
        let found = engine.record("", None).await?;
        check_found(set, id, map, &**engine, &found.text)?;
        if is_free(&found.text) {
            check_unused(&**engine).await?;
        }
    }
    for (id, engine) in engines {
        write_record(
            &Stored::first(set, id, map, promised.clone()),
            map,
            &**engine,
        )
        .await?;
    }
    Ok(())
}

/// Whether a store with this record belongs to no set.
fn is_free(text: &str) -> bool {
    text.is_empty() || dissolved(text).is_some()
}

fn check_found(set: &str, id: &str, map: &Map, engine: &dyn Engine, text: &str) -> Result<()> {
    if is_free(text) {
        return Ok(());
    }
    let stored = Stored::parse(text);
    let checked = stored.and_then(|stored| stored.check_fixed(set, id, map));
    checked.map_err(|why| Error::config(engine, ConfigPart::Record, why))
}

async fn write_record(wanted: &Stored, map: &Map, engine: &dyn Engine) -> Result<()> {
    let text = wanted.text()?;
    let mut found = engine.record("", None).await?;
    while found.text != text {
        check_found(&wanted.set, &wanted.shard, map, engine, &found.text)?;
        let change = RecordChange::new(found.version, &text)?;
        found = engine.record("", Some(&change)).await?;
    }
    Ok(())
}
