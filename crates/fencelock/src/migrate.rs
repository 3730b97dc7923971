//! Two stores, or two sets of shards, between which locks move while programs run, from a URL: `migrate:?from=URL&to=URL`, each
//! URL percent-encoded.

use std::any::Any;
use std::sync::Arc;
use std::{fmt, mem};

use async_trait::async_trait;
use fencelock_composite::{Migrate, Migration, Opening, Shard};
use fencelock_core::engine::StoreOptions;
use fencelock_core::{ConfigPart, Engine, Error, Result, StoreUrl};

use crate::member::{Member, Options, in_url, opener};
use crate::shards::ShardSet;

/// The scheme.
pub(crate) const SCHEME: &str = "migrate";

/// Its two sides.
const FROM: &str = "from";
const TO: &str = "to";

/// Two stores, or two sets of shards, between which locks move, as [`connect`](crate::connect()) takes them.
///
/// [`migration`](Self::migration) prepares them and makes the steps.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # #[cfg(feature = "sqlite")] {
/// use fencelock::MigrateSet;
/// use fencelock::composite::Prepare;
///
/// # let dir = std::env::temp_dir().join(format!("fencelock-doc-migrate-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir).unwrap();
/// # let (old, new) = (format!("sqlite:{}/a", dir.display()), format!("sqlite:{}/b", dir.display()));
/// let set = || MigrateSet::new("orders", old.as_str(), new.as_str());
/// set().migration()?.prepare(&Prepare::default(), "me").await?; // once
/// let client = fencelock::connect(set()).await?;
/// client.lock("{customer-7}/invoice").await?.release().await?;
/// # client.close().await?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # }
/// # Ok(())
/// # }
/// ```
#[must_use = "give it to connect, or make a step"]
pub struct MigrateSet {
    url: StoreUrl,
    set: Option<String>,
    breaker: bool,
    /// The old and the new side, or the error in them.
    sides: Result<Sides, Wrong>,
}

/// The two sides between which names move.
enum Sides {
    /// All names move from one store to another.
    Stores([Arc<Member>; 2]),
    /// Some names move between the old and the new shards.
    Shards(Box<[ShardSet; 2]>),
}

/// A store that cannot be used, and why.
#[derive(Clone, Debug)]
struct Wrong {
    store: String,
    part: ConfigPart,
    why: String,
}

impl Wrong {
    /// An error of a store, named as one of this set.
    fn new(set: Option<&str>, id: &str, error: &Error) -> Self {
        let of = format!("{SCHEME}:{}[{id}]", set.unwrap_or(SCHEME));
        match error {
            Error::Config {
                store, part, why, ..
            } => Self {
                store: format!("{of} {}", store.trim_end_matches(':')),
                part: *part,
                why: why.clone(),
            },
            other => Self {
                store: of,
                part: ConfigPart::Url,
                why: other.to_string(),
            },
        }
    }
}

impl From<Wrong> for Error {
    fn from(Wrong { store, part, why }: Wrong) -> Self {
        Self::config(store, part, why)
    }
}

impl MigrateSet {
    pub(crate) fn of(set: &str, from: Options, to: Options) -> Self {
        let mut url = StoreUrl::new(SCHEME, [""; 0], "");
        url.set("set", set);
        let sides = sides(&mut url, Some(set), from, to);
        Self {
            breaker: sides.as_ref().map_or(true, Sides::have_breakers),
            sides,
            url,
            set: Some(set.to_owned()),
        }
    }

    /// From a URL; `read` reads those of the stores.
    pub(crate) fn from_url(mut url: StoreUrl, read: impl Fn(&str) -> Options) -> Result<Self> {
        let refuse =
            |url: &StoreUrl| url.refuse("write migrate:?from=URL&to=URL, each URL percent-encoded");
        if !url.path.is_empty() || !url.hosts.is_empty() {
            return Err(refuse(&url));
        }
        let (from, to) = (url.take("from"), url.take("to"));
        let set = url.take("set");
        let breaker = url.take_choice("breaker", &[("yes", true), ("no", false)])?;
        let (Some(from), Some(to)) = (from, to) else {
            return Err(refuse(&url));
        };
        let sides = sides(&mut url, set.as_deref(), read(&from), read(&to))?;
        Ok(Self {
            breaker: breaker && sides.have_breakers(),
            url,
            set,
            sides: Ok(sides),
        })
    }

    fn described(&self) -> Result<Migrate> {
        let inspect_only = self.url.inspect_only;
        let described = match self.sides.as_ref().map_err(Wrong::clone)? {
            Sides::Stores([from, to]) => {
                let shard = |id, member| Shard::new(id, opener(member, inspect_only));
                Migrate::between(shard(FROM, from), shard(TO, to))
            }
            Sides::Shards(sets) => {
                let [from, to] = &**sets;
                let shards = |set: &ShardSet| set.shards(Opening::All, inspect_only);
                Migrate::shards(shards(from)?, shards(to)?)
            }
        };
        let described = described.breaker(self.breaker);
        Ok(match &self.set {
            Some(set) => described.set(set),
            None => described,
        })
    }

    /// The migration, which can prepare the stores and make the steps.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for stores that cannot be used, [`Error::Invalid`](crate::Error::Invalid) for a
    /// name or a change of shards that is not possible.
    pub fn migration(self) -> Result<Migration> {
        self.described()?.migration()
    }
}

impl Sides {
    fn have_breakers(&self) -> bool {
        match self {
            Self::Stores(_) => true,
            Self::Shards(sets) => sets.iter().all(ShardSet::has_breakers),
        }
    }

    fn check(&self, set: Option<&str>) -> Result<()> {
        match self {
            Self::Stores(stores) => {
                for (id, member) in [FROM, TO].into_iter().zip(stores) {
                    let checked = member.check();
                    checked.map_err(|error| Wrong::new(set, id, &error))?;
                }
                Ok(())
            }
            Self::Shards(sets) => sets.iter().try_for_each(ShardSet::check_stores),
        }
    }
}

/// The two sides from the options of the old and the new store. For sets of shards, `url`, which names the set, gets their
/// prefix.
fn sides(
    url: &mut StoreUrl,
    set: Option<&str>,
    from: Options,
    to: Options,
) -> Result<Sides, Wrong> {
    let wrong = |id| move |error| Wrong::new(set, id, &error);
    let (from, to) = (from.map_err(wrong(FROM))?, to.map_err(wrong(TO))?);
    match (shard_set(from), shard_set(to)) {
        (Ok(from), Ok(to)) => shard_sets(url, set, [from, to]),
        (Err(from), Err(to)) => {
            let from = Member::new("the old store", Ok(from)).map_err(wrong(FROM))?;
            let to = Member::new("the new store", Ok(to)).map_err(wrong(TO))?;
            // Two stores in memory are never the same one.
            if from.is_alike(&to) && !from.is_in_memory() {
                let why = "it is the same store as the old one; name another store to move to";
                return Err(Wrong::new(set, TO, &url.refuse(why)));
            }
            Ok(Sides::Stores([Arc::new(from), Arc::new(to)]))
        }
        _ => {
            let why = "one is a set of shards, and the other one is not; locks move from one store to another, or between two sets \
                       of shards";
            Err(Wrong::new(set, FROM, &url.refuse(why)))
        }
    }
}

/// The set of shards that these options are, or the options themselves.
fn shard_set(mut options: Box<dyn StoreOptions>) -> Result<ShardSet, Box<dyn StoreOptions>> {
    let any: &mut dyn Any = &mut *options;
    match any.downcast_mut::<ShardSet>() {
        Some(set) => Ok(mem::replace(set, ShardSet::new(""))),
        None => Err(options),
    }
}

fn shard_sets(
    url: &mut StoreUrl,
    set: Option<&str>,
    mut sets: [ShardSet; 2],
) -> Result<Sides, Wrong> {
    let refuse = |url: &StoreUrl, why: String| Err(Wrong::new(set, TO, &url.refuse(why)));
    let [from, to] = sets.each_mut().map(|set| set.url_mut().take("prefix"));
    if from != to {
        return refuse(
            url,
            "both sets of shards must have the same prefix".to_owned(),
        );
    }
    if let Some(prefix) = from {
        if url.clone().take("prefix").is_some_and(|own| own != prefix) {
            return refuse(
                url,
                "its prefix must be that of its sets of shards".to_owned(),
            );
        }
        url.set("prefix", prefix);
    }
    if let Some(id) = sets[0].moved(&sets[1]) {
        let why = format!(
            "shard {id} has two URLs; a shard that stays must have the same URL in both sets (to move its store, remove the shard and add one with another id)"
        );
        return refuse(url, why);
    }
    Ok(Sides::Shards(Box::new(sets)))
}

/// Without passwords.
impl fmt::Debug for MigrateSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MigrateSet({})", self.set.as_deref().unwrap_or(SCHEME))
    }
}

#[async_trait]
impl StoreOptions for MigrateSet {
    fn url(&mut self) -> &mut StoreUrl {
        &mut self.url
    }

    fn check(&self) -> Result<()> {
        let described = self.described()?;
        if let Ok(sides) = &self.sides {
            sides.check(self.set.as_deref())?;
        }
        let mut url = self.url.clone();
        url.take("set");
        // This option limits the retries of opening; the code that opens the set reads it.
        url.take_duration("connect-timeout")?;
        url.finish()?;
        described.check().map_err(|error| in_url(&self.url, error))
    }

    async fn init(&mut self) -> Result<()> {
        let why = "its records are written by `fencelock migrate prepare`";
        Err(self.url.refuse(why))
    }

    async fn open(&self) -> Result<Arc<dyn Engine>> {
        self.check()?;
        Ok(Arc::new(self.described()?.open().await?))
    }
}

#[cfg(test)]
mod tests {
    use crate::Store;

    #[test]
    fn a_store_that_cannot_be_used_is_named_once() {
        let bad = Store::from("migrate:?set=a&from=memory:&to=memory:%3Fbad=1");
        let text = bad.check().unwrap_err().to_string();
        assert!(
            text.starts_with("store migrate:a[to] memory: the option"),
            "{text}"
        );
        let unknown = Store::from("migrate:?from=foo:&to=memory:");
        let text = unknown.check().unwrap_err().to_string();
        assert!(
            text.starts_with("store migrate:migrate[from] foo: the scheme"),
            "{text}"
        );
        assert_eq!(text.matches("migrate:").count(), 1, "{text}");
    }

    #[test]
    fn the_documented_options_are_taken() {
        let url = "migrate:?from=memory:&to=memory:&set=a&breaker=no&prefix=p&connect-timeout=1s&outside-set=yes";
        assert!(Store::from(url).check().is_ok());
        assert!(Store::from(&*format!("{url}&more=1")).check().is_err());
    }

    #[test]
    fn a_move_from_a_store_to_itself_is_refused() {
        let same = "migrate:?set=a&from=sqlite:/tmp/locks.db&to=sqlite:/tmp/locks.db";
        let text = Store::from(same).check().unwrap_err().to_string();
        assert!(text.contains("the same store"), "{text}");
        let other = "migrate:?set=a&from=sqlite:/tmp/locks.db&to=sqlite:/tmp/new.db";
        assert!(Store::from(other).check().is_ok());
    }

    /// A set between two sets of shards.
    fn between(from: &str, to: &str) -> Result<(), String> {
        let encoded = |set: &str| {
            let set = set.replace('%', "%25").replace('&', "%26");
            set.replace('?', "%3F").replace('@', "%40")
        };
        let url = format!(
            "migrate:?set=grow&from={}&to={}",
            encoded(from),
            encoded(to)
        );
        Store::from(url).check().map_err(|error| error.to_string())
    }

    #[test]
    fn two_sets_of_shards_are_taken() {
        let three = "shards:?set=orders3&a=memory:&b=memory:&c=memory:";
        let two = "shards:?set=orders&a=memory:&b=memory:";
        assert_eq!(between(two, three), Ok(()));
        assert_eq!(between(three, two), Ok(()));
        let with_prefix = [two, three].map(|set| format!("{set}&prefix=p/&connect-timeout=1s"));
        assert_eq!(between(&with_prefix[0], &with_prefix[1]), Ok(()));
    }

    #[cfg(feature = "redis")]
    #[test]
    fn sets_between_which_no_names_can_move_are_refused() {
        let two = "shards:?a=memory:&b=redis://:secret%40h:1";
        for (to, why) in [
            ("memory:", "one is a set of shards"),
            (two, "same shards"),
            (
                "shards:?a=memory:&b=redis://:secret%40h:2&c=memory:",
                "shard b has two URLs",
            ),
            (
                "shards:?a=memory:&b=redis://:secret%40h:1&b.weight=2&c=memory:",
                "keeps its weight",
            ),
            (
                "shards:?a=memory:&b=redis://:secret%40h:1&c=memory:&key=/",
                "key rule",
            ),
            (
                "shards:?a=memory:&b=redis://:secret%40h:1&c=memory:&prefix=p",
                "same prefix",
            ),
        ] {
            let refused = between(two, to).unwrap_err();
            assert!(refused.contains(why), "{to}: {refused}");
            assert!(!refused.contains("secret"), "{to}: {refused}");
        }
    }

    #[test]
    fn the_shards_of_a_change_are_those_of_both_sets() {
        let url =
            "migrate:?from=shards:%3Fa=memory:%26b=memory:&to=shards:%3Fb=memory:%26c=memory:";
        let url = fencelock_core::StoreUrl::parse(url).unwrap();
        let ids: Vec<_> = crate::shard_urls(&url)
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        assert_eq!(ids, ["a", "b", "c"]);
    }
}
