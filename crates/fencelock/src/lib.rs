//! A distributed lock with fencing tokens, on the servers you already run.
//!
//! ```
//! use std::time::Duration;
//!
//! use fencelock::{Error, Token};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Error> {
//! let client = fencelock::connect("memory:").await?; // or sqlite:PATH, redis://HOST
//! let report = client
//!     .lock("nightly-report")
//!     .ttl(Duration::from_secs(30))
//!     .with(|held| write_report(held.token())) // the resource refuses an older token
//!     .await;
//! match report {
//!     Ok(report) => println!("{report}"),
//!     // The body was dropped at its next await.
//!     Err(Error::Lost { reason, .. }) => println!("stopped halfway, the lock was lost: {reason}"),
//!     Err(error) => return Err(error),
//! }
//! # Ok(())
//! # }
//!
//! async fn write_report(token: Token) -> String {
//!     format!("written with token {token}")
//! }
//! ```
//!
//! Every grant has a [`Token`] that is higher than those of all earlier grants of the same name. Hand it to the resource that
//! the lock protects: no lock can stop a holder that was paused in the middle of a write, but the resource can refuse it.
//!
//! Without [`with`](Client::with), [`lock`](Client::lock) gives a [`Guard`]. It renews itself, and says when it is lost:
//! ask [`Guard::is_valid`] before each step, or wait for [`Guard::lost`] while you work. Dropping it releases the lock.
//!
//! # Stores
//!
//! | URL | store | feature |
//! | --- | --- | --- |
//! | `memory:` | this process alone, for tests | |
//! | `sqlite:`, `sqlite:PATH` | a file; without a path, one of this user | `sqlite`, on by default |
//! | `redis://HOST`, `valkey://HOST`, `redis+unix://PATH` | one Redis or Valkey server | `redis`, on by default |
//! | `redis+sentinel://HOSTS/MASTER`, `redis+cluster://HOSTS` | Redis Sentinel, Redis Cluster | `redis` |
//! | `redlock://HOSTS` | independent Redis servers, of which a majority decides | `redis` |
//! | `mysql://USER@HOST/DATABASE`, `mariadb://…` | MySQL, MariaDB | `mysql` |
//! | `postgres://USER@HOST/DATABASE` | PostgreSQL | `postgres` |
//! | `zookeeper://HOSTS` | ZooKeeper | `zookeeper` |
//! | `etcd://HOSTS` | etcd | `etcd`, needs `protoc` to build |
//! | `fencelock+http://HOSTS` | any of them, behind the lock service | `http` |
//! | `shards:?a=URL&b=URL` | several of them, each with its part of the names | `composite` |
//! | `migrate:?from=URL&to=URL` | two of them, from one to the other while programs run | `composite` |
//!
//! With the feature `config`, `@orders` is the store that a configuration file calls `orders`.
//!
//! Options follow after a `?`: `redis://HOST?prefix=shop:&connect-timeout=10s`. Stores promise different things;
//! [`Client::promises`] says what a client's store promises. Anything else is refused with [`Error::Unsupported`], never
//! imitated.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | those of the stores | the stores |
//! | `composite` | sets of stores, on which names are spread; see `ShardSet` |
//! | `config` | stores with names, in a configuration file; see `Config` |
//! | `tls` | TLS: `rediss://`, `redlocks://`, `etcds://`, `fencelock+https://`, and for databases by default |
//! | `fence` | the module `fence`: the resource's side, for the stores whose features are on |
//! | `fence-http` | a fence before an HTTP service, as a tower layer |
//! | `metrics` | metrics through the `metrics` crate |
//! | `serde` | serializable sequencers, tokens and names |
//! | `all` | all of them |
//!
//! # Where to go next
//!
//! * [`Acquire`]: the settings of a request, such as its mode, lease and time to wait. [`Error`]: how it may end.
//! * [`Client::lock_all`], [`Semaphore`], [`Election`]: several locks at once, permits, one leader.
//! * [`blocking`]: the same for programs without async.
//! * `fence`: resources that refuse late holders. `versioned`: rows with a version, which need no lock.
//! * [`Client::look`], [`Client::list`], [`Client::evict`]: for operators. [`Observer`]: for monitoring.
//! * [`Memory`] and [`layers::Fault`]: tests of your own code, on good and bad days.
//! * [`engine`]: the contract, for a store of your own.

pub mod blocking;
#[cfg(feature = "config")]
mod config;
mod connect;
#[cfg(feature = "composite")]
mod member;
#[cfg(feature = "composite")]
mod migrate;
mod schema;
#[cfg(feature = "composite")]
mod shards;
mod store;
mod to_open;
#[cfg(feature = "composite")]
mod with_record;
mod wrong_server;

#[cfg(feature = "config")]
pub use config::Config;
#[cfg(feature = "composite")]
pub use connect::init;
pub use connect::{Connect, connect, open_engine};
#[cfg(feature = "composite")]
#[doc(inline)]
pub use fencelock_composite as composite;
/// What [`Guard::cancellation_token`] returns.
pub use fencelock_core::CancellationToken;
#[doc(inline)]
pub use fencelock_core::{
    Acquire, AcquireAll, Acquiring, BootInstant, Campaign, Cause, Client, ClientBuilder, Clock,
    ConfigPart, DEFAULT_BATCH, DEFAULT_TTL, Durability, Election, Error, Evict, Finding, Floor,
    Guard, Guards, Heartbeat, Held, HolderView, Leader, Leaders, Leadership, LeaseKind, Lock,
    LockName, LockView, LossReason, MAX_NAME_BYTES, Memory, Mode, Observer, Order, Owner, Promises,
    Purpose, Release, Result, Semaphore, Sequencer, StoreChange, StoreUrl, Token, WaiterView, Wake,
    engine, in_words, layers, parse_duration, support,
};
#[cfg(feature = "etcd")]
#[doc(inline)]
pub use fencelock_etcd as etcd;
#[cfg(feature = "fence")]
#[doc(inline)]
pub use fencelock_fence as fence;
#[cfg(feature = "http")]
#[doc(inline)]
pub use fencelock_http as http;
#[cfg(feature = "mysql")]
#[doc(inline)]
pub use fencelock_mysql as mysql;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use fencelock_postgres as postgres;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use fencelock_redis as redis;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use fencelock_redis::redlock;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use fencelock_sqlite as sqlite;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
#[doc(inline)]
pub use fencelock_versioned as versioned;
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use fencelock_zookeeper as zookeeper;
#[cfg(feature = "composite")]
pub use migrate::MigrateSet;
pub use schema::{schema, schemas};
#[cfg(feature = "composite")]
pub use shards::{ShardSet, shard_urls};
pub use store::Store;
