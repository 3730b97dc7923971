//! Fences: the check at the resource, which refuses a holder that was superseded by a later one.
//!
//! A lease cannot stop a process that was paused in the middle of a write. So each grant of a lock has a token that is
//! higher than the tokens of all earlier grants. The holder sends it with each write, as a
//! [`Sequencer`](fencelock_core::Sequencer). The resource remembers the highest token that it has seen and refuses lower
//! ones. The check must be **one step with the write**, or a higher token may come in between. Every fence here ensures that.
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
//! A fence keeps two marks: the highest token of any exclusive holder, and the highest token of any holder (the top). An
//! exclusive holder passes if its token is above the top, or if it is the top and of the same claim. A shared holder or a
//! permit passes if its token is above the first mark; it raises only the top. See [`Marks`].
//!
//! A sequencer is not signed: every client of the resource can invent one. A fence protects against holders that are late,
//! not against holders that lie.

mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
mod file;
mod gates;
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
