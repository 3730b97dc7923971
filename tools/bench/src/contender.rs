//! The contenders: this library, the bare client of the same engine, and other lock libraries.

use std::pin::Pin;
use std::time::Duration;

use fencelock::{BootInstant, Client, Clock, Guard, Result, StoreUrl};
use tokio::task::JoinSet;

use crate::bare::failed;
use crate::bare::shards::Spread;
#[cfg(feature = "peers")]
use crate::foreign::Foreign;

/// The ttl of every hold that is not about leases.
const TTL: Duration = Duration::from_secs(30);

/// A kind of contender, with its name in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// This library.
    Fencelock,
    /// The engine's bare client.
    Bare,
    /// This library, through a lock service before the store.
    #[cfg(feature = "http")]
    Served,
    /// The crate `rslock`.
    #[cfg(feature = "peers")]
    Rslock,
    /// Etcd's own lock service.
    #[cfg(feature = "etcd")]
    LockService,
    /// Go's `clientv3/concurrency`.
    #[cfg(feature = "etcd")]
    Concurrency,
    /// Python's kazoo.
    #[cfg(feature = "zookeeper")]
    Kazoo,
    /// The npm package `redlock`, version 5.
    #[cfg(feature = "peers")]
    NodeRedlock,
    /// A library of another language on one Redis.
    #[cfg(feature = "peers")]
    Foreign(Foreign),
}

impl Who {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Fencelock => "fencelock",
            Self::Bare => "bare client",
            #[cfg(feature = "http")]
            Self::Served => "through one replica",
            #[cfg(feature = "peers")]
            Self::Rslock => "rslock",
            #[cfg(feature = "etcd")]
            Self::LockService => "lock service",
            #[cfg(feature = "etcd")]
            Self::Concurrency => "Go's concurrency",
            #[cfg(feature = "zookeeper")]
            Self::Kazoo => "kazoo",
            #[cfg(feature = "peers")]
            Self::NodeRedlock => "node-redlock",
            #[cfg(feature = "peers")]
            Self::Foreign(foreign) => foreign.name(),
        }
    }

    /// Whether it runs in this program.
    pub(crate) fn runs_here(self) -> bool {
        #[cfg(feature = "peers")]
        if matches!(self, Self::Foreign(_)) {
            return false;
        }
        #[cfg(feature = "etcd")]
        if self == Self::Concurrency {
            return false;
        }
        #[cfg(feature = "zookeeper")]
        if self == Self::Kazoo {
            return false;
        }
        true
    }

    /// Whether one task can hold the lock while others queue, until it is told to release.
    pub(crate) fn drains(self) -> bool {
        #[cfg(feature = "peers")]
        if matches!(self, Self::Foreign(_)) {
            return true;
        }
        self.runs_here()
    }

    /// The contender with this name.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let all = [
            Self::Fencelock,
            Self::Bare,
            #[cfg(feature = "http")]
            Self::Served,
            #[cfg(feature = "peers")]
            Self::Rslock,
            #[cfg(feature = "etcd")]
            Self::LockService,
            #[cfg(feature = "peers")]
            Self::NodeRedlock,
        ];
        let found = all.into_iter().find(|who| who.name() == name);
        found.ok_or_else(|| failed("a worker", format!("it does not know {name:?}")))
    }
}

/// A connected contender.
#[derive(Clone)]
pub(crate) enum Contender {
    Fencelock(Client),
    /// With a bare client for each shard.
    BareShards(Spread, Vec<Contender>),
    #[cfg(feature = "redis")]
    BareRedis(Box<crate::bare::redis::BareRedis>),
    #[cfg(feature = "redis")]
    BareRedlock(crate::bare::redlock::BareRedlock),
    #[cfg(feature = "sqlite")]
    BareSqlite(crate::bare::sqlite::BareSqlite),
    #[cfg(feature = "zookeeper")]
    BareZooKeeper(crate::bare::zookeeper::BareZooKeeper),
    #[cfg(feature = "etcd")]
    BareEtcd(Box<crate::bare::etcd::BareEtcd>),
    #[cfg(feature = "http")]
    BareHttp(crate::bare::http::BareHttp),
    #[cfg(feature = "mysql")]
    BareMySql(crate::bare::mysql::BareMySql),
    #[cfg(feature = "postgres")]
    BarePostgres(Box<crate::bare::postgres::BarePostgres>),
    #[cfg(feature = "peers")]
    Rslock(rslock::LockManager),
    #[cfg(feature = "peers")]
    NodeRedlock(crate::node_redlock::NodeRedlock),
}

/// A lock that is held.
pub(crate) enum Held {
    Fencelock(Box<Guard>),
    #[cfg(feature = "peers")]
    Rslock(rslock::Lock),
    #[cfg(feature = "etcd")]
    LockService(Box<crate::bare::etcd::Locked>),
}

impl Contender {
    /// Connects.
    pub(crate) async fn open(who: Who, url: &str) -> Result<Self> {
        match who {
            Who::Fencelock => Ok(Self::Fencelock(fencelock::connect(url).await?)),
            #[cfg(feature = "http")]
            Who::Served => Ok(Self::Fencelock(fencelock::connect(url).await?)),
            Who::Bare => match engine(url)? {
                #[cfg(feature = "redis")]
                "redis" => {
                    let bare = crate::bare::redis::BareRedis::open(url).await?;
                    Ok(Self::BareRedis(Box::new(bare)))
                }
                #[cfg(feature = "redis")]
                "redlock" => {
                    let bare = crate::bare::redlock::BareRedlock::open(url).await?;
                    Ok(Self::BareRedlock(bare))
                }
                #[cfg(feature = "sqlite")]
                "sqlite" => Ok(Self::BareSqlite(crate::bare::sqlite::BareSqlite::open(
                    url,
                )?)),
                #[cfg(feature = "zookeeper")]
                "zookeeper" => Ok(Self::BareZooKeeper(
                    crate::bare::zookeeper::BareZooKeeper::open(url).await?,
                )),
                #[cfg(feature = "etcd")]
                "etcd" => {
                    let bare = crate::bare::etcd::BareEtcd::open(url).await?;
                    Ok(Self::BareEtcd(Box::new(bare)))
                }
                #[cfg(feature = "http")]
                "http" => Ok(Self::BareHttp(crate::bare::http::BareHttp::open(url)?)),
                #[cfg(feature = "mysql")]
                "mysql" => {
                    let bare = crate::bare::mysql::BareMySql::open(url).await?;
                    Ok(Self::BareMySql(bare))
                }
                #[cfg(feature = "postgres")]
                "postgres" => {
                    let bare = crate::bare::postgres::BarePostgres::open(url).await?;
                    Ok(Self::BarePostgres(Box::new(bare)))
                }
                "shards" => {
                    let (spread, mut clients) = (Spread::of(url)?, Vec::new());
                    for url in &spread.urls {
                        clients.push(Box::pin(Self::open(who, url)).await?);
                    }
                    Ok(Self::BareShards(spread, clients))
                }
                other => Err(failed("the baseline", format!("there is none for {other}"))),
            },
            #[cfg(feature = "etcd")]
            Who::LockService => {
                let bare = crate::bare::etcd::BareEtcd::open(url).await?;
                Ok(Self::BareEtcd(Box::new(bare)))
            }
            #[cfg(feature = "etcd")]
            Who::Concurrency => Err(elsewhere(who)),
            #[cfg(feature = "zookeeper")]
            Who::Kazoo => Err(elsewhere(who)),
            #[cfg(feature = "peers")]
            Who::Foreign(_) => Err(elsewhere(who)),
            #[cfg(feature = "peers")]
            Who::Rslock => {
                let clients = match engine(url)? {
                    "redlock" => crate::bare::redlock::clients(url)?,
                    _ => vec![crate::bare::redis::client(url)?],
                };
                let mut manager = rslock::LockManager::from_clients(clients);
                // Its default delay, and unlimited tries.
                manager.set_retry(u32::MAX, Duration::from_millis(200));
                Ok(Self::Rslock(manager))
            }
            #[cfg(feature = "peers")]
            Who::NodeRedlock => {
                let node = crate::node_redlock::NodeRedlock::open(url).await?;
                Ok(Self::NodeRedlock(node))
            }
        }
    }

    /// Each task locks its own names in turn until `until`. Returns the total number of pairs.
    pub(crate) async fn pairs(&self, names: Vec<Vec<String>>, until: BootInstant) -> Result<u64> {
        #[cfg(feature = "peers")]
        if let Self::NodeRedlock(node) = self {
            return node.pairs(names, until).await;
        }
        let mut tasks = JoinSet::new();
        if let Self::BareShards(spread, clients) = self {
            for (client, names) in clients.iter().cloned().zip(spread.split(names)) {
                tasks.spawn(pairs_of(client, names, until));
            }
        } else {
            for names in names {
                let this = self.clone();
                tasks.spawn(async move { this.task(&names, until).await });
            }
        }
        let mut pairs = 0;
        while let Some(task) = tasks.join_next().await {
            pairs += task.map_err(|error| failed("a task", error))??;
        }
        Ok(pairs)
    }

    async fn task(&self, names: &[String], until: BootInstant) -> Result<u64> {
        match self {
            Self::Fencelock(client) => {
                let mut pairs = 0;
                for name in names.iter().cycle() {
                    if Clock::Boot.now() >= until {
                        break;
                    }
                    client.lock(name).await?.release().await?;
                    pairs += 1;
                }
                Ok(pairs)
            }
            Self::BareShards(..) => Err(failed("a set", "each of its stores has its own tasks")),
            #[cfg(feature = "redis")]
            Self::BareRedis(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "redis")]
            Self::BareRedlock(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "sqlite")]
            Self::BareSqlite(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "zookeeper")]
            Self::BareZooKeeper(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "etcd")]
            Self::BareEtcd(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "http")]
            Self::BareHttp(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "mysql")]
            Self::BareMySql(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "postgres")]
            Self::BarePostgres(bare) => bare.pairs(names, until).await,
            #[cfg(feature = "peers")]
            Self::Rslock(manager) => {
                let mut pairs = 0;
                for name in names.iter().cycle() {
                    if Clock::Boot.now() >= until {
                        break;
                    }
                    let lock = manager.lock(name.as_str(), TTL).await;
                    let lock = lock.map_err(|error| failed("rslock", error))?;
                    manager.unlock(&lock).await;
                    pairs += 1;
                }
                Ok(pairs)
            }
            #[cfg(feature = "peers")]
            Self::NodeRedlock(_) => Err(failed("node-redlock", "it runs its own tasks")),
        }
    }

    /// Ends its connections.
    pub(crate) async fn close(self) -> Result<()> {
        match self {
            Self::Fencelock(client) => client.close().await,
            // Closed when dropped.
            _ => Ok(()),
        }
    }

    /// Waits for the lock `name`.
    pub(crate) async fn take(&self, name: &str) -> Result<Held> {
        match self {
            Self::Fencelock(client) => {
                let guard = client.lock(name).ttl(TTL).await?;
                Ok(Held::Fencelock(Box::new(guard)))
            }
            #[cfg(feature = "peers")]
            Self::Rslock(manager) => {
                let lock = manager.lock(name, TTL).await;
                Ok(Held::Rslock(lock.map_err(|error| failed("rslock", error))?))
            }
            #[cfg(feature = "etcd")]
            Self::BareEtcd(bare) => Ok(Held::LockService(Box::new(bare.lock(name).await?))),
            _ => Err(failed("the bare client", "it cannot wait for a lock")),
        }
    }
}

/// The pairs of one client. A contender may have several clients.
fn pairs_of(
    client: Contender,
    names: Vec<Vec<String>>,
    until: BootInstant,
) -> Pin<Box<dyn Future<Output = Result<u64>> + Send>> {
    Box::pin(async move { client.pairs(names, until).await })
}

impl Held {
    /// The fencing token; 0 if there is none.
    pub(crate) fn token(&self) -> u64 {
        match self {
            Self::Fencelock(guard) => guard.token().get(),
            #[cfg(feature = "peers")]
            Self::Rslock(_) => 0,
            // The revisions of its keys could serve as tokens, but its clients do not show them.
            #[cfg(feature = "etcd")]
            Self::LockService(_) => 0,
        }
    }

    /// Releases.
    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Fencelock(guard) => guard.release().await.map(|_| ()),
            #[cfg(feature = "peers")]
            Self::Rslock(lock) => {
                lock.release().await;
                Ok(())
            }
            #[cfg(feature = "etcd")]
            Self::LockService(locked) => locked.unlock().await,
        }
    }
}

#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "peers"))]
fn elsewhere(who: Who) -> fencelock::Error {
    failed(who.name(), "it runs only in processes of its own")
}

/// The engine of a store's URL: `redis`, `sqlite`, `memory`, or the scheme itself.
pub(crate) fn engine(url: &str) -> Result<&'static str> {
    Ok(match StoreUrl::parse(url)?.scheme.as_str() {
        "redis" | "valkey" | "redis+unix" => "redis",
        "redlock" => "redlock",
        "sqlite" => "sqlite",
        "zookeeper" => "zookeeper",
        "etcd" => "etcd",
        "mysql" | "mariadb" => "mysql",
        "postgres" | "postgresql" => "postgres",
        "fencelock+http" | "fencelock+https" => "http",
        "shards" => "shards",
        "migrate" => "migrate",
        "memory" => "memory",
        _ => "this engine",
    })
}
