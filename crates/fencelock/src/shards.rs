//! Sets of stores from a URL: `shards:?a=URL&b=URL`, each URL percent-encoded.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_composite::{KeyRule, Opening, Routed, Shard, Shards, Stepped};
use fencelock_core::engine::StoreOptions;
use fencelock_core::{ConfigPart, Engine, Error, Result, StoreUrl};

use crate::member::{Member, Options, in_url, is_set, opener};

/// The scheme of a set.
pub(crate) const SCHEME: &str = "shards";

/// An option for a weight is the shard's id and this suffix.
const WEIGHT: &str = ".weight";

/// Options that belong to every store, and are read when a set is opened.
const OF_EVERY_STORE: [&str; 3] = ["prefix", "connect-timeout", "outside-set"];

/// Options of a set that are not shards.
const OF_A_SET: [&str; 3] = ["breaker", "key", "set"];

/// The ids of the stores of a URL `shards:` or `migrate:` with their URLs, as written; none for another URL.
///
/// ```
/// # fn main() -> fencelock::Result<()> {
/// let url = fencelock::StoreUrl::parse("shards:?a=redis://r1&b=redis://r2&b.weight=2&set=orders")?;
/// let shards = fencelock::shard_urls(&url);
/// assert_eq!(shards[1], ("b".to_owned(), "redis://r2".to_owned()));
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn shard_urls(url: &StoreUrl) -> Vec<(String, String)> {
    if !is_set(url) {
        return Vec::new();
    }
    let others = [&OF_EVERY_STORE[..], &OF_A_SET].concat();
    let mut shards = url.clone().take_others(&others);
    shards.retain(|(option, _)| !option.ends_with(WEIGHT));
    let sides = shards.iter().map(|(_, side)| StoreUrl::parse(side).ok());
    let sides = sides.map(|side| side.filter(|side| side.scheme == SCHEME));
    match sides.collect::<Option<Vec<_>>>() {
        // A migration between two sets of shards has the shards of both.
        Some(sides) if url.scheme != SCHEME => {
            let mut both: Vec<_> = sides.iter().flat_map(shard_urls).collect();
            both.sort();
            both.dedup_by(|one, other| one.0 == other.0);
            both
        }
        _ => shards,
    }
}

/// A set of stores, on which the names of locks are spread, as [`connect`](crate::connect()) takes it.
///
/// Each store has a record that says which shard of which set it is. [`init`](crate::init) writes the records, once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> fencelock::Result<()> {
/// # #[cfg(feature = "sqlite")] {
/// use fencelock::ShardSet;
///
/// # let dir = std::env::temp_dir().join(format!("fencelock-doc-shards-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir).unwrap();
/// # let (one, other) = (format!("sqlite:{}/a", dir.display()), format!("sqlite:{}/b", dir.display()));
/// let set = || ShardSet::new("orders").shard("a", 1, one.as_str()).shard("b", 1, other.as_str());
/// fencelock::init(set()).await?; // once, when the set is made
/// let client = fencelock::connect(set()).await?;
/// client.lock("{customer-7}/invoice").await?.release().await?;
/// # client.close().await?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # }
/// # Ok(())
/// # }
/// ```
#[must_use = "give it to connect, or to init"]
pub struct ShardSet {
    url: StoreUrl,
    set: Option<String>,
    key: KeyRule,
    breaker: bool,
    shards: Vec<(String, u8, Arc<Member>)>,
    /// The first error in the arguments.
    wrong: Option<Error>,
}

impl ShardSet {
    /// A set with this name and no shards yet.
    ///
    /// ```
    /// # use fencelock::ShardSet;
    /// let set = ShardSet::new("orders").shard("a", 1, "sqlite:a.db").shard("b", 1, "sqlite:b.db");
    /// ```
    pub fn new(set: impl Into<String>) -> Self {
        let set = set.into();
        let mut url = StoreUrl::new(SCHEME, [""; 0], "");
        url.set("set", &set);
        Self {
            url,
            set: Some(set),
            key: KeyRule::default(),
            breaker: true,
            shards: Vec::new(),
            wrong: None,
        }
    }

    pub(crate) fn add(mut self, id: String, weight: u8, store: Options) -> Self {
        match Member::new(&format!("shard {id}"), store) {
            Ok(member) => self.shards.push((id, weight, Arc::new(member))),
            Err(error) => {
                let error =
                    Error::config(&self.url, ConfigPart::Url, format!("shard {id}: {error}"));
                self.wrong = self.wrong.or(Some(error));
            }
        }
        self
    }

    /// Sets which part of a name decides on which shard it lies. By default, it is the text within `{…}`.
    ///
    /// ```
    /// # use fencelock::{ShardSet, composite::KeyRule};
    /// let set = ShardSet::new("orders").key(KeyRule::Slash).shard("a", 1, "sqlite:a.db");
    /// ```
    pub fn key(mut self, key: KeyRule) -> Self {
        self.key = key;
        self
    }

    /// Sets whether requests for the names of a shard fail at once while the shard is away, by a
    /// [`Breaker`](fencelock_core::layers::Breaker). Yes by default. In a URL: `breaker`.
    ///
    /// ```
    /// # use fencelock::ShardSet;
    /// let set = ShardSet::new("orders").shard("a", 1, "sqlite:a.db").breaker(false);
    /// ```
    pub fn breaker(mut self, breaker: bool) -> Self {
        self.breaker = breaker;
        self
    }

    /// From a URL; `read` reads those of the stores.
    pub(crate) fn from_url(mut url: StoreUrl, read: impl Fn(&str) -> Options) -> Result<Self> {
        if !url.path.is_empty() || !url.hosts.is_empty() {
            return Err(url
                .refuse("a set has no host; write shards:?a=URL&b=URL, each URL percent-encoded"));
        }
        let key = match url.take("key") {
            None => KeyRule::default(),
            Some(text) => KeyRule::from_text(&text).ok_or_else(|| {
                url.refuse(format!("key={text:?}: it must be {{}} (the text within braces) or / (before the first slash)"))
            })?,
        };
        let set = url.take("set");
        let breaker = url.take_choice("breaker", &[("yes", true), ("no", false)])?;
        let mut shards = Self {
            url: url.clone(),
            set,
            key,
            breaker,
            shards: Vec::new(),
            wrong: None,
        };
        let (weights, stores): (Vec<_>, Vec<_>) = shards
            .url
            .take_others(&OF_EVERY_STORE)
            .into_iter()
            .partition(|(option, _)| option.ends_with(WEIGHT));
        let mut weights: std::collections::BTreeMap<_, _> = weights.into_iter().collect();
        for (id, store) in stores {
            let weight = match weights.remove(&format!("{id}{WEIGHT}")) {
                None => 1,
                Some(text) => text.parse().map_err(|_| {
                    url.refuse(format!(
                        "{id}{WEIGHT}={text:?}: a weight must be a whole number from 1 to 100"
                    ))
                })?,
            };
            shards = shards.add(id, weight, read(&store));
        }
        match (shards.wrong.take(), weights.into_keys().next()) {
            (Some(error), _) => Err(error),
            (None, Some(option)) => Err(url.refuse(format!("{option}: there is no such shard"))),
            (None, None) => Ok(shards),
        }
    }

    /// Ends a set of one shard, so that programs use its store by itself. See [`Migration::dissolve`]; `by` is for people who
    /// read the record.
    ///
    /// # Errors
    /// Those of [`Migration::dissolve`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> fencelock::Result<()> {
    /// # #[cfg(feature = "sqlite")] {
    /// use fencelock::ShardSet;
    ///
    /// # let dir = std::env::temp_dir().join(format!("fencelock-doc-dissolve-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).unwrap();
    /// # let store = format!("sqlite:{}/a", dir.display());
    /// let set = || ShardSet::new("orders").shard("a", 1, store.as_str());
    /// fencelock::init(set()).await?;
    /// set().dissolve("me").await?;
    /// assert!(fencelock::connect(set()).await.is_err());
    /// let client = fencelock::connect(&store).await?;
    /// # client.close().await?;
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Migration::dissolve`]: fencelock_composite::Migration::dissolve
    pub async fn dissolve(self, by: &str) -> Result<Stepped> {
        self.check_stores()?;
        self.shards(Opening::All, self.url.inspect_only)?
            .dissolve(by)
            .await
    }

    pub(crate) fn url_mut(&mut self) -> &mut StoreUrl {
        &mut self.url
    }

    /// Whether its shards are to have breakers.
    pub(crate) fn has_breakers(&self) -> bool {
        self.breaker
    }

    /// The id of a shard that both sets have, but with different URLs.
    pub(crate) fn moved(&self, other: &Self) -> Option<&str> {
        let moved = self.shards.iter().find(|(id, _, member)| {
            let mut others = other.shards.iter();
            others.any(|(its, _, store)| its == id && !store.is_alike(member))
        });
        moved.map(|(id, ..)| id.as_str())
    }

    pub(crate) fn check_stores(&self) -> Result<()> {
        for (id, _, member) in &self.shards {
            let checked = member.check();
            checked.map_err(|error| self.url.refuse(format!("shard {id}: {error}")))?;
        }
        Ok(())
    }

    /// The shards, if their map and the name of their set can be used.
    fn checked(&self, opening: Opening) -> Result<Shards> {
        let shards = self.shards(opening, self.url.inspect_only)?;
        let checked = shards.check();
        checked.map_err(|error| in_url(&self.url, error))?;
        Ok(shards)
    }

    pub(crate) fn shards(&self, opening: Opening, inspect_only: bool) -> Result<Shards> {
        if let Some(Error::Config {
            store, part, why, ..
        }) = &self.wrong
        {
            return Err(Error::config(store, *part, why));
        }
        let shards = self.shards.iter().map(|(id, weight, member)| {
            let store = opener(member, inspect_only);
            Shard::new(id, store).weight(*weight)
        });
        let shards = Routed::shards(shards)
            .key(self.key)
            .breaker(self.breaker)
            .opening(opening);
        Ok(match &self.set {
            Some(set) => shards.set(set),
            None => shards,
        })
    }
}

/// Without passwords.
impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.shards.iter().map(|(id, ..)| id.as_str()).collect();
        write!(
            f,
            "ShardSet({}: {})",
            self.set.as_deref().unwrap_or(SCHEME),
            ids.join(", ")
        )
    }
}

#[async_trait]
impl StoreOptions for ShardSet {
    fn url(&mut self) -> &mut StoreUrl {
        &mut self.url
    }

    fn check(&self) -> Result<()> {
        self.check_stores()?;
        self.checked(Opening::All).map(|_| ())
    }

    async fn init(&mut self) -> Result<()> {
        self.checked(Opening::All)?.init().await
    }

    async fn open(&self) -> Result<Arc<dyn Engine>> {
        let opening = match self.url.as_needed {
            true => Opening::AsNeeded,
            false => Opening::All,
        };
        Ok(Arc::new(self.checked(opening)?.open().await?))
    }
}
