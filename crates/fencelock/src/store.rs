//! Stores that can be opened. Only this module knows which engine a scheme means.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use fencelock_core::engine::StoreOptions;
use fencelock_core::{Engine, Memory, Result, StoreUrl};

use crate::to_open::ToOpen;

/// A store to be opened, as [`connect`](crate::connect()) takes it. It is made from the text of a URL, from a [`StoreUrl`], or
/// from the `Options` of one kind of store, such as `redis::Options`. It is also made from `@` and the name that a store has in
/// the configuration file. `Debug` shows no password.
///
/// ```
/// let store = fencelock::Store::from("redis://ann:secret@cache:6379");
/// assert!(!format!("{store:?}").contains("secret"));
/// ```
pub struct Store(pub(crate) Result<Box<dyn StoreOptions>>);

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(options) => options.fmt(f),
            Err(error) => write!(f, "{error}"),
        }
    }
}

impl From<&str> for Store {
    fn from(url: &str) -> Self {
        match url.strip_prefix('@') {
            Some(name) => of_name(name),
            None => Self(StoreUrl::parse(url).and_then(of_scheme)),
        }
    }
}

impl Store {
    /// Checks the options: reads them, and the files and variables that they name. Sends nothing.
    ///
    /// ```
    /// use fencelock::Store;
    ///
    /// assert!(Store::from("memory:").check().is_ok());
    /// assert!(Store::from("memory:?no-such-option=1").check().is_err());
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config).
    pub fn check(self) -> Result<()> {
        ToOpen::new(self.0?)?.check()
    }
}

/// A store of the configuration file.
#[cfg(feature = "config")]
fn of_name(name: &str) -> Store {
    let stores = fencelock_config::Stores::load(fencelock_config::path());
    match stores {
        Ok(stores) => of_file(&stores, name),
        Err(error) => Store(Err(error)),
    }
}

#[cfg(not(feature = "config"))]
fn of_name(name: &str) -> Store {
    let why = "this build does not read the configuration file; build with the feature config";
    Store(Err(fencelock_core::Error::config(
        StoreUrl::redacted(&format!("@{name}")),
        fencelock_core::ConfigPart::Build,
        why,
    )))
}

/// A store of this configuration file.
#[cfg(feature = "config")]
pub(crate) fn of_file(stores: &fencelock_config::Stores, name: &str) -> Store {
    let url = stores.url(name).and_then(|url| StoreUrl::parse(&url));
    Store(url.and_then(|mut url| {
        let name = fencelock_config::name_of(name).unwrap_or(name);
        url.purpose = stores.purpose(name);
        of_scheme(url)
    }))
}

impl From<&String> for Store {
    fn from(url: &String) -> Self {
        url.as_str().into()
    }
}

impl From<String> for Store {
    fn from(url: String) -> Self {
        url.as_str().into()
    }
}

impl From<StoreUrl> for Store {
    fn from(url: StoreUrl) -> Self {
        Self(of_scheme(url))
    }
}

macro_rules! from_options {
    ($($feature:literal $options:path;)*) => {
        $(
            #[cfg(feature = $feature)]
            impl From<$options> for Store {
                fn from(options: $options) -> Self {
                    Self(Ok(Box::new(options)))
                }
            }
        )*
    };
}

from_options! {
    "redis" fencelock_redis::Options;
    "redis" fencelock_redis::redlock::Options;
    "mysql" fencelock_mysql::Options;
    "postgres" fencelock_postgres::Options;
    "sqlite" fencelock_sqlite::Options;
    "zookeeper" fencelock_zookeeper::Options;
    "etcd" fencelock_etcd::Options;
    "http" fencelock_http::Options;
}

fn of_scheme(url: StoreUrl) -> Result<Box<dyn StoreOptions>> {
    #[cfg(feature = "composite")]
    if crate::with_record::has_record(&url) {
        let of_text = |text: String| Store::from(text).0;
        let with_record = crate::with_record::WithRecord::new(url, of_scheme, of_text);
        return Ok(Box::new(with_record));
    }
    Ok(match url.scheme.as_str() {
        "memory" => Box::new(InMemory(url)),
        #[cfg(feature = "sqlite")]
        "sqlite" => Box::new(fencelock_sqlite::Options::from(url)),
        #[cfg(feature = "redis")]
        "redis" | "rediss" | "valkey" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => Box::new(fencelock_redis::Options::from(url)),
        #[cfg(feature = "redis")]
        "redlock" | "redlocks" => {
            #[cfg(feature = "composite")]
            let url = crate::with_record::known(url);
            Box::new(fencelock_redis::redlock::Options::from(url))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Box::new(fencelock_mysql::Options::from(url)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Box::new(fencelock_postgres::Options::from(url)),
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Box::new(fencelock_zookeeper::Options::from(url)),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Box::new(fencelock_etcd::Options::from(url)),
        #[cfg(feature = "http")]
        "fencelock+http" | "fencelock+https" => Box::new(fencelock_http::Options::from(url)),
        #[cfg(feature = "composite")]
        "shards" => Box::new(crate::shards::ShardSet::from_url(url, |url| {
            Store::from(url).0
        })?),
        #[cfg(feature = "composite")]
        "migrate" => Box::new(crate::migrate::MigrateSet::from_url(url, |url| {
            Store::from(url).0
        })?),
        #[cfg(not(feature = "composite"))]
        "shards" | "migrate" => return Err(not_built(&url, "composite")),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => return Err(not_built(&url, "sqlite")),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "valkey" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" | "redlock" | "redlocks" => {
            return Err(not_built(&url, "redis"));
        }
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => return Err(not_built(&url, "mysql")),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => return Err(not_built(&url, "postgres")),
        #[cfg(not(feature = "zookeeper"))]
        "zookeeper" => return Err(not_built(&url, "zookeeper")),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => return Err(not_built(&url, "etcd")),
        #[cfg(not(feature = "http"))]
        "fencelock+http" | "fencelock+https" => return Err(not_built(&url, "http")),
        scheme => {
            let why = format!(
                "the scheme {scheme:?} is unknown; known are memory, sqlite, redis, rediss, valkey, redis+unix, \
                 redis+sentinel, rediss+sentinel, redis+cluster, rediss+cluster, redlock, redlocks, mysql, mariadb, postgres, \
                 postgresql, zookeeper, etcd, etcds, fencelock+http, fencelock+https, shards, migrate"
            );
            return Err(url.refuse(why));
        }
    })
}

#[cfg(not(all(
    feature = "sqlite",
    feature = "redis",
    feature = "mysql",
    feature = "postgres",
    feature = "zookeeper",
    feature = "etcd",
    feature = "http",
    feature = "composite"
)))]
fn not_built(url: &StoreUrl, feature: &str) -> fencelock_core::Error {
    url.refuse_part(
        fencelock_core::ConfigPart::Build,
        format!("this build has no engine for it; build with the feature {feature}"),
    )
}

#[cfg(feature = "composite")]
impl crate::shards::ShardSet {
    /// From a URL `shards:?a=URL&b=URL`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for another URL, and for one that cannot be used.
    ///
    /// ```
    /// # fn main() -> fencelock::Result<()> {
    /// fencelock::ShardSet::parse("shards:?set=orders&a=memory:&b=memory:")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        match url.scheme == crate::shards::SCHEME {
            true => Self::from_url(url, |url| Store::from(url).0),
            false => Err(url.refuse("it is not a set of shards; name one, shards:?a=URL&b=URL")),
        }
    }

    /// Adds a shard: its id, its weight (a whole number from 1 to 100), and its store, which is opened when it is first needed.
    /// Opening the set reports errors in its arguments.
    pub fn shard(self, id: impl Into<String>, weight: u8, store: impl Into<Store>) -> Self {
        self.add(id.into(), weight, store.into().0)
    }
}

#[cfg(feature = "composite")]
impl From<crate::shards::ShardSet> for Store {
    fn from(set: crate::shards::ShardSet) -> Self {
        Self(Ok(Box::new(set)))
    }
}

#[cfg(feature = "composite")]
impl crate::migrate::MigrateSet {
    /// The set with this name, from the old store to the new one. Opening it reports errors in the stores.
    pub fn new(set: &str, from: impl Into<Store>, to: impl Into<Store>) -> Self {
        Self::of(set, from.into().0, to.into().0)
    }

    /// From a URL `migrate:?from=URL&to=URL`.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for another URL, and for one that cannot be used.
    pub fn parse(url: &str) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        match url.scheme == crate::migrate::SCHEME {
            true => Self::from_url(url, |url| Store::from(url).0),
            false => {
                Err(url
                    .refuse("it is not a move between stores; name one, migrate:?from=URL&to=URL"))
            }
        }
    }
}

#[cfg(feature = "composite")]
impl From<crate::migrate::MigrateSet> for Store {
    fn from(set: crate::migrate::MigrateSet) -> Self {
        Self(Ok(Box::new(set)))
    }
}

/// The store `memory:`.
#[derive(Debug)]
struct InMemory(StoreUrl);

#[async_trait]
impl StoreOptions for InMemory {
    fn url(&mut self) -> &mut StoreUrl {
        &mut self.0
    }

    fn check(&self) -> Result<()> {
        let url = self.0.clone();
        if !url.path.is_empty() || !url.hosts.is_empty() {
            return Err(url.refuse("it has a host or a path; write memory:"));
        }
        url.finish()
    }

    async fn open(&self) -> Result<Arc<dyn Engine>> {
        self.check()?;
        Ok(Arc::new(Memory::new()))
    }
}
