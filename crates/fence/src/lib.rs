//! Fences: the check at the resource, which refuses a holder that was superseded.
//!
//! A lease cannot stop a process that was paused in the middle of a write. So each grant of a lock has a token that is
//! higher than that of every grant before, the holder sends it along as a [`Sequencer`](fencelock_core::Sequencer), and the
//! resource remembers the highest that it has seen and refuses lower ones. The check must be **one step with the write**,
//! or a higher token may come in between; every fence here is made so.
//!
//! | resource | fence |
//! | --- | --- |
//! | this process, with or without a file | [`Highest`] |
//! | a database row, or a whole transaction | [`sql`], with helpers for the drivers |
//! | Redis or Valkey | `redis`: a script that checks and writes |
//! | etcd | `etcd`: a transaction |
//! | ZooKeeper | `zookeeper`: a multi |
//! | an HTTP service | `http`: a tower layer that reads `Fencelock-Sequencer` |
//! | N replicas | [`Quorum`]: mark on a majority, then write on a majority |
//!
//! # The rule
//! A fence keeps two marks: the highest token of an exclusive holder, and the highest of any. An exclusive holder passes
//! above both, or equal to the top from the same claim. Shared holders and permits pass above the first, beside each
//! other, and raise only the second. See [`Marks`].
//!
//! A sequencer is not signed: whoever can reach the resource can make one up. A fence protects against holders that are
//! late, not against holders that lie.

mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod file;
mod highest;
#[cfg(feature = "http")]
pub mod http;
mod marks;
mod quorum;
#[cfg(feature = "redis")]
pub mod redis;
pub mod sql;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use error::{FenceError, Result, Stale};
pub use highest::{Highest, Pass};
pub use marks::Marks;
pub use quorum::{Quorum, Replica};
