//! A distributed lock with fencing tokens, on the servers you already run.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fencelock::Error> {
//! let client = fencelock::connect("memory:").await?; // or sqlite:PATH, redis://HOST
//! let guard = client.lock("nightly-report").await?;
//! assert!(guard.is_valid());
//! println!("token {}", guard.token());
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Every grant has a [`Token`] that is higher than that of any grant of the same name before; hand it to the resource, so
//! that the resource can refuse a holder that woke up too late. A [`Guard`] renews itself and says when it is lost,
//! before anyone else is granted the lock.
//!
//! Programs without async use [`blocking`]. Which stores there are, and what each can promise, is in the README.

pub mod blocking;
mod connect;
mod schema;
mod store;

pub use connect::{Connect, connect, open_engine};
pub use fencelock_core::*;
#[cfg(feature = "etcd")]
#[doc(inline)]
pub use fencelock_etcd as etcd;
/// The resource's side: fences, which refuse a holder that was superseded.
#[cfg(feature = "fence")]
pub use fencelock_fence as fence;
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
pub use fencelock_redis::redlock;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use fencelock_sqlite as sqlite;
/// The optimistic way, without a lock: rows with a version.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub use fencelock_versioned as versioned;
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use fencelock_zookeeper as zookeeper;
pub use schema::{schema, schemas};
pub use store::Store;
