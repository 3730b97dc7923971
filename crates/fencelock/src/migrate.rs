//! Two stores between which locks move while programs run, by URL: `migrate:?from=URL&to=URL`, each URL percent-encoded.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_composite::{Migrate, Migration, Shard};
use fencelock_core::engine::StoreOptions;
use fencelock_core::{Engine, Error, Result, StoreUrl};

use crate::member::{Member, Options, opener};

/// The scheme.
pub(crate) const SCHEME: &str = "migrate";

/// Two stores between which locks move, as [`connect`](crate::connect()) takes them.
///
/// [`migration`](Self::migration) prepares them and makes the steps; docs/operations.md walks through it.
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
    /// The old and the new store, or what is wrong with them.
    stores: Result<[Arc<Member>; 2], Wrong>,
}

/// A store that cannot be used, and why.
#[derive(Clone, Debug)]
struct Wrong {
    store: String,
    why: String,
}

impl Wrong {
    /// An error of a store, named as one of this set.
    fn new(set: Option<&str>, id: &str, error: &Error) -> Self {
        let of = format!("{SCHEME}:{}[{id}]", set.unwrap_or(SCHEME));
        match error {
            Error::Config { store, why, .. } => Self {
                store: format!("{of} {}", store.trim_end_matches(':')),
                why: why.clone(),
            },
            other => Self {
                store: of,
                why: other.to_string(),
            },
        }
    }
}

impl From<Wrong> for Error {
    fn from(Wrong { store, why }: Wrong) -> Self {
        Self::config(store, why)
    }
}

impl MigrateSet {
    pub(crate) fn of(set: &str, from: Options, to: Options) -> Self {
        let mut url = StoreUrl::new(SCHEME, [""; 0], "");
        url.set("set", set);
        Self {
            stores: members(Some(set), from, to),
            url,
            set: Some(set.to_owned()),
            breaker: true,
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
        let stores = members(set.as_deref(), read(&from), read(&to));
        if let Err(wrong) = &stores {
            return Err(wrong.clone().into());
        }
        Ok(Self {
            url,
            set,
            breaker,
            stores,
        })
    }

    fn described(&self) -> Result<Migrate> {
        let [from, to] = self.stores.as_ref().map_err(Wrong::clone)?;
        let shard = |id, member| Shard::new(id, opener(member, self.url.inspect_only));
        let stores = Migrate::between(shard("from", from), shard("to", to)).breaker(self.breaker);
        Ok(match &self.set {
            Some(set) => stores.set(set),
            None => stores,
        })
    }

    /// What prepares the migration and makes its steps.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for stores that cannot be used, [`Error::Invalid`](crate::Error::Invalid) for a
    /// name that makes no sense.
    pub fn migration(self) -> Result<Migration> {
        self.described()?.migration()
    }
}

fn members(set: Option<&str>, from: Options, to: Options) -> Result<[Arc<Member>; 2], Wrong> {
    let member = |id, what: &str, store| {
        let member = Member::new(what, store).map(Arc::new);
        member.map_err(|error| Wrong::new(set, id, &error))
    };
    Ok([
        member("from", "the old store", from)?,
        member("to", "the new store", to)?,
    ])
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
        if let Ok(stores) = &self.stores {
            for (id, member) in ["from", "to"].into_iter().zip(stores) {
                let checked = member.check();
                checked.map_err(|error| Wrong::new(self.set.as_deref(), id, &error))?;
            }
        }
        let mut url = self.url.clone();
        url.take("set");
        // For how long opening is tried again; who opens it reads that.
        url.take_duration("connect-timeout")?;
        url.finish()?;
        described.check()
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
}
