//! What every engine must do: one list of cases, run on each engine in as far as it [promises](fencelock::Promises) them.
//!
//! * [`cases`]: the list. A case knows nothing of the engine that it runs on but its promises.
//! * [`Subject`]: an engine under test. A new engine is one more of them, in [`subjects`].
//! * [`harness`]: runs each case on each subject, each with a store of its own.
//! * [`history`]: judges what happened, and is tested on histories that are wrong.
//! * [`Remote`]: another process that locks; its other end is the binary `fencelock-conformance-worker`.
//!
//! Everything here is test code: a case fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod case;
pub mod cases;
mod ctx;
pub mod harness;
pub mod history;
mod pool;
mod remote;
mod subject;
pub mod subjects;
mod wait;

pub use case::{Case, Needs};
pub use ctx::Ctx;
pub use remote::{Remote, Wanted};
pub use subject::{Passwords, Server, Store, Subject};
